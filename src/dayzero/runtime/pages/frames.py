"""Where blocks lie on one rank: chunks of its memory, each with blocks of one group, and the slots in them.

Nobody else needs to know: blocks move within their group so that a chunk becomes empty for another one. While the
blocks of all groups fit (`Room.fits`) there is always one that can be emptied: a group that has more chunks than its
blocks need has free slots for a whole one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

import numpy as np

from dayzero.runtime.pool import Block, allocator

from .room import Room
from .table import Numbers

Move = Callable[[int, list[int], list[int]], None]
"""Called with (group, slots, other slots): the content of the first is wanted in the others."""
_NONE = -1


class _Chunk:
    """Slots of one chunk; free ones are taken lowest first."""

    def __init__(self, block: Block, holds: int) -> None:
        self.block = block
        self.slots = range(block.offset * holds, (block.offset + 1) * holds)
        self.free = set(self.slots)
        self._lowest, self._queued = list(self.slots), set(self.slots)

    @property
    def live(self) -> list[int]:
        """Slots that are taken."""
        return [slot for slot in self.slots if slot not in self.free]

    def take(self, wanted: int) -> int:
        """The wanted slot when it is free, else the lowest."""
        slot = wanted
        while slot not in self.free:
            slot = heapq.heappop(self._lowest)
            self._queued.discard(slot)
        self.free.remove(slot)
        return slot

    def give(self, slot: int) -> None:
        """It is free."""
        self.free.add(slot)
        if slot not in self._queued:
            self._queued.add(slot)
            heapq.heappush(self._lowest, slot)


class Frames:
    """Slots of all groups' blocks. A slot's number: its chunk times a chunk's slots, and its place in the chunk."""

    def __init__(self, room: Room, move: Move) -> None:
        self.room, self._move = room, move
        self._memory = allocator(room.chunks, equal=1, alignment=1)
        self._chunks: list[dict[int, _Chunk]] = [{} for _ in room.holds]
        self._slots: list[Numbers] = [np.full(64, _NONE, np.int64) for _ in room.holds]
        self._blocks: list[dict[int, int]] = [{} for _ in room.holds]
        self._rows: list[dict[tuple[int, int], Numbers]] = [{} for _ in room.holds]
        self._spread: list[dict[int, list[Block]]] = [{} for _ in room.holds]
        """The chunks of blocks that take several."""

    def slot(self, group: int, block: int) -> int:
        """Where a block is; -1 for nowhere."""
        return int(self._slots[group][block]) if block < len(self._slots[group]) else _NONE

    def slots(self, group: int, block: int) -> list[int]:
        """Where each of a block's units is: in a chunk of its own where there are several."""
        spread = self._spread[group].get(block)
        return [self.slot(group, block)] if spread is None else [each.offset for each in spread]

    def rows(self, group: int, tokens: int, in_chunk: int) -> Numbers:
        """For each number of a block the row of its first token, in a tensor that has so many rows in the length of a
        chunk."""
        found = self._rows[group].get((tokens, in_chunk))
        if found is None:
            slots, holds = self._slots[group], self.room.holds[group]
            found = self._rows[group][tokens, in_chunk] = slots // holds * in_chunk + slots % holds * tokens
        return found

    def put(self, group: int, block: int, after: int | None = None) -> None:
        """Find a slot for a block that has none, behind the block `after` if that one is free."""
        holds = self.room.holds[group]
        if not holds or self.slot(group, block) != _NONE:
            return
        if self.room.span(group) > 1:
            self._spread[group][block] = taken = [self._chunk() for _ in range(self.room.span(group))]
            self._set(group, block, taken[0].offset)
            return
        wanted = _NONE if after is None else self.slot(group, after) + 1
        chunk = self._chunks[group].get(wanted // holds)
        if chunk is None or wanted not in chunk.free:
            chunk = self._free_chunk(group)
        self._set(group, block, chunk.take(wanted))

    def drop(self, group: int, blocks: Iterable[int]) -> None:
        """Nobody wants their content. Blocks that never had a slot are passed over."""
        for block in blocks:
            if (slot := self.slot(group, block)) != _NONE:
                self._slots[group][block] = _NONE
                del self._blocks[group][slot]
                for chunk in (spread := self._spread[group].pop(block, ())):
                    self._memory.give(chunk)
                if not spread:
                    self._chunks[group][slot // self.room.holds[group]].give(slot)

    def _set(self, group: int, block: int, slot: int) -> None:
        if block >= len(self._slots[group]):
            more = np.full(max(block + 1, len(self._slots[group])), _NONE, np.int64)
            self._slots[group] = np.concatenate([self._slots[group], more])
        self._slots[group][block] = slot
        self._blocks[group][slot] = block
        self._rows[group].clear()

    def _free_chunk(self, group: int) -> _Chunk:
        """One of the group's with a free slot: the fullest, so that others become empty."""
        free = [chunk for chunk in self._chunks[group].values() if chunk.free]
        if free:
            return min(free, key=lambda chunk: len(chunk.free))
        block = self._chunk()
        found = self._chunks[group][block.offset] = _Chunk(block, self.room.holds[group])
        return found

    def _chunk(self) -> Block:
        """One that nobody has."""
        if not self._memory.fits(1):
            self._empty_one()
        return self._memory.take(1)

    def _empty_one(self) -> None:
        """The chunk for which least is to be moved: its blocks go to other chunks of its group."""
        group, number = min(((group, number) for group, chunks in enumerate(self._chunks)
                             for number, chunk in chunks.items() if self._room_beside(group, chunk)),
                            key=lambda each: len(self._chunks[each[0]][each[1]].live))
        chunk = self._chunks[group].pop(number)
        old = chunk.live
        new = [self._free_chunk(group).take(_NONE) for _ in old]
        if old:
            self._move(group, old, new)
        for before, after in zip(old, new, strict=True):
            self._set(group, self._blocks[group].pop(before), after)
        self._memory.give(chunk.block)

    def _room_beside(self, group: int, chunk: _Chunk) -> bool:
        elsewhere = sum(len(each.free) for each in self._chunks[group].values() if each is not chunk)
        return elsewhere >= len(chunk.slots) - len(chunk.free)
