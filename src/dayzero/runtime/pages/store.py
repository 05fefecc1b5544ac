"""One rank's pages: the tensors of its layers in blocks, the sequences' tables, and a cache object for the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dayzero.runtime.sharding import local

from .call import Call, Lines, prepare
from .frames import Frames
from .kinds import Group, LayerKind, groups_of
from .layers import PagedCache, PagedStates, PagedTokens, paged_layer
from .memory import Memory
from .room import Room
from .saved import Saved, Shelf, digest
from .states import Slots
from .step import Change, Copied, Dropped, Failure, Freed, Grown, Row, Step, Trimmed
from .table import Table
from .track import Scratch, Track

_PROBE = 0
_STATES = Group(None)


class Pages:
    """Paged cache of one rank. Everything that changes it comes as a Step, but for `measure` and `allocate`."""

    def __init__(self, kinds: Sequence[LayerKind], *, block_tokens: int = 16, device: torch.device | str = "cpu",
                 folder: Path | None = None) -> None:
        self.groups = groups_of(kinds)
        self.block_tokens, self.device = block_tokens, torch.device(device)
        self.shelf = Shelf(folder)
        self.call: Call
        self._tables: dict[int, dict[Group, Table]] = {}
        self._resident: tuple[int, ...] = ()
        # A layer whose past is another one's keeps what that one was given, so nothing may be put in its place.
        scratch = None if any(kind == LayerKind() for kind in kinds) else Scratch()
        self.cache: Any = PagedCache(layers=[paged_layer(kind, self, scratch) for kind in kinds])
        self._batches = [layer.states for layer in self.cache.layers if isinstance(layer, PagedStates)]
        self._slots: list[tuple[int, Any, Slots]] = [
            (number, name, slots) for number, layer in enumerate(self.cache.layers)
            if isinstance(layer, PagedStates) for name, slots in layer.states.slots.items()]
        self._tracks: list[tuple[int, str, Group, Track]] = [
            (number, name, layer.group, track) for number, layer in enumerate(self.cache.layers)
            if isinstance(layer, PagedTokens) for name, track in layer.tracks.items()]
        self._ready(Room(len(self.groups), (1,) * len(self.groups)))

    def _ready(self, room: Room) -> None:
        """Memory for blocks, all of them free."""
        self._frames = Frames(room, self._move)
        for _, _, group, track in self._tracks:
            number = self.groups.index(group)
            size = group.tokens(self.block_tokens)
            track.lines = Lines(number, size, room.holds[number] * size)
        self._note_lines()

    def _note_lines(self) -> None:
        holds = self._frames.room.holds
        self._lines = tuple(dict.fromkeys(track.lines for _, _, _, track in self._tracks if holds[track.lines.group]))

    @property
    def uniform(self) -> bool:
        """Whether a call's rows must all have a past or all have none."""
        return bool(self._slots)

    def places(self, group: Group) -> int:
        """Tokens of a pool of its own, for a tensor that was not there when memory was allocated."""
        room = self._frames.room
        return room.chunks * room.holds[self.groups.index(group)] * group.tokens(self.block_tokens)

    # sizes

    @torch.no_grad()
    def measure(self, forward: Callable[[Call, Any], Any]) -> dict[Group, tuple[int, ...]]:
        """Bytes of a block (of a slot) of each group in each of its tensors on this rank, found by a call of one token.
        Every rank has to make it at the same time."""
        for number in range(len(self.groups)):
            self._change(Grown(_PROBE, number, (0,)))
        with self.calling((Row(_PROBE, 0, (0,)),)):
            forward(self.call, self.cache)
        self.flush()
        del self._tables[_PROBE]
        return {group: tuple(sizes) for group, sizes in self._sizes().items()}

    def _sizes(self) -> dict[Group, list[int]]:
        sizes: dict[Group, list[int]] = {group: [] for group in self.groups}
        for _, _, group, track in self._tracks:
            sizes[group].append(track.token_bytes * group.tokens(self.block_tokens))
        for _, _, slots in self._slots:
            sizes[_STATES].append(slots.slot_bytes)
        return sizes

    @torch.no_grad()
    def allocate(self, room: Room) -> None:
        """Memory for so many blocks, all of them free."""
        self._ready(room)
        memory = Memory(room, self._sizes(), self.block_tokens, self.device)
        for _, _, group, track in self._tracks:
            memory.tokens(track, self.groups.index(group), group)
        for _, _, slots in self._slots:
            memory.states(slots, self.groups.index(_STATES))
        self._note_lines()

    # steps

    @torch.no_grad()
    def apply(self, step: Step) -> list[Failure]:
        """All of a step that comes before its calls."""
        if step.moves:
            self.flush()
        for spilled in step.spilled:
            self.shelf.put(spilled.sequence, self.export(spilled.sequence, 0, spilled.tokens), spilled.tier)
            del self._tables[spilled.sequence]
        for sequence in step.forgotten:
            self.shelf.drop(sequence)
        for change in step.changes:
            self._change(change)
        return [failure for each in step.restored if (failure := self._restore(each.sequence))]

    def _change(self, change: Change) -> None:
        match change:
            case Grown(sequence, number, blocks, at):
                tables = self._tables.setdefault(sequence, {group: Table() for group in self.groups})
                table = tables[self.groups[number]]
                before = table.before(at)
                for block in blocks:
                    self._frames.put(number, block, before)
                    before = block
                table.put(at, blocks)
            case Trimmed(sequence, number, count):
                self._tables[sequence][self.groups[number]].trim(count)
            case Copied(number, source, target):
                self._frames.put(number, target)
                both = zip(*(self._frames.slots(number, each) for each in (source, target)), strict=True)
                for unit, (old, new) in enumerate(both):
                    self._move(number, [old], [new], unit)
            case Freed(number, blocks):
                self._frames.drop(number, blocks)
            case Dropped(sequence):
                self._tables.pop(sequence, None)

    def _move(self, number: int, sources: list[int], targets: list[int], unit: int = 0) -> None:
        """Content of slots of a group, or of a unit of it, into others."""
        group = self.groups[number]
        if group == _STATES:
            self.flush()
        for _, _, of, track in self._tracks:
            if of == group:
                track.move(sources, targets, self._frames.room.holds[number])
        for _, _, slots in self._slots if group == _STATES else ():
            if slots.unit == unit:
                slots.move(sources, targets)

    @contextmanager
    def calling(self, rows: Sequence[Row]) -> Iterator[Call]:
        """The cache object stands for these rows. Rows that a call fails for have no states any more."""
        self.call = prepare(rows, [self._tables[row.sequence] for row in rows], self.groups, self._lines, self._frames,
                            self.device)
        sequences = tuple(row.sequence for row in rows)
        self._enter(sequences)
        yield self.call
        self._leave(sequences)

    def _enter(self, sequences: tuple[int, ...]) -> None:
        if self._batches and (self.call.fresh or sequences != self._resident):
            self.flush()
            at = self._numbers(sequences)
            for states in self._batches:
                states.clear() if self.call.fresh else states.load(at)
        self._resident = ()

    def _leave(self, sequences: tuple[int, ...]) -> None:
        self._resident = sequences if self._batches else ()

    @torch.no_grad()
    def flush(self) -> None:
        """States of the last call to their slots."""
        resident, self._resident = self._resident, ()
        if resident:
            at = self._numbers(resident)
            for states in self._batches:
                states.store(at, self._shape())

    def _shape(self) -> tuple[int, int]:
        """Chunks, and a chunk's slots of states."""
        room = self._frames.room
        return room.chunks, room.holds[self.groups.index(_STATES)]

    def _numbers(self, sequences: Sequence[int]) -> list[tuple[int, ...]]:
        """Slots of their states, for each unit of these."""
        if not self._slots:
            return []
        states = self.groups.index(_STATES)
        return list(zip(*(self._frames.slots(states, int(self._tables[sequence][_STATES].blocks[0]))
                          for sequence in sequences), strict=True))

    # out of the pool and back

    @torch.no_grad()
    def export(self, sequence: int, start: int, stop: int) -> Saved:
        """The cache of tokens from `start` to `stop`, in host memory, and the states after the last computed one."""
        self.flush()
        tables, at, parts = self._tables[sequence], self._numbers([sequence]), {}
        for number, name, group, track in self._tracks:
            if track.pool is not None:
                places = self._held_places(tables[group], track.lines, start, stop)
                parts[number, name, 0] = track.pool.index_select(0, places).cpu()
        for number, (name, index), slots in self._slots:
            if slots.pool is not None:
                parts[number, name, index] = local(slots.read(at[slots.unit]))[0].clone().cpu()
        return Saved(start, stop, parts, digest(parts))

    @torch.no_grad()
    def absorb(self, sequence: int, saved: Saved) -> None:
        """Put it back, into the blocks that the sequence has now."""
        self.flush()
        tables, at = self._tables[sequence], self._numbers([sequence])
        for number, name, group, track in self._tracks:
            part = saved.parts.get((number, name, 0))
            if part is not None and track.pool is not None:
                places = self._held_places(tables[group], track.lines, saved.first, saved.tokens)
                both = min(len(places), len(part))  # behind a window, each may hold what the other does not
                track.pool.index_copy_(0, places[len(places) - both:], part[len(part) - both:].to(self.device))
        for number, (name, index), slots in self._slots:
            if slots.pool is not None:
                state = saved.parts[number, name, index][None].to(self.device)
                slots.write(state, at[slots.unit], self._shape())

    def _held_places(self, table: Table, lines: Lines, start: int, stop: int) -> torch.Tensor:
        first = max(start, table.first * lines.tokens)
        rows = self._frames.rows(lines.group, lines.tokens, lines.in_chunk)
        return torch.from_numpy(table.places(first, max(first, stop), lines.tokens, rows)).to(self.device)

    def _restore(self, sequence: int) -> Failure | None:
        from dayzero.errors import StageError

        try:
            self.absorb(sequence, self.shelf.take(sequence))
        except (StageError, OSError) as error:
            return Failure(sequence, str(error), restoring=True)
        return None

