"""A golden dump as rows of sequences: what ranks hold is put together, whatever passes it was computed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import NotPossible, StoreError
from dayzero.runtime.golden import Dump, open_dump
from dayzero.runtime.golden.columns import columns_before
from dayzero.runtime.golden.dump import Item, positions
from dayzero.runtime.substitution.places import Held, Place

Array = NDArray[Any]
_SCHEMES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_CACHE = 256 << 20
_TAKEN = ("input", "output", "router", "logits")


class DumpRows:
    """A dump. Raises StoreError when it cannot be read, NotPossible when it does not hold all values of tokens that are
    known."""

    def __init__(self, folder: Path) -> None:
        self.dump: Dump = open_dump(folder)
        head = self.dump.ranks[0]
        if head.mode != "whole":
            raise NotPossible(f"the dump holds {head.mode} values and not all of them",
                              "record it again with --mode whole")
        self.precision = _SCHEMES.get(head.origin.dtype, "f32")
        """bf16, f16 or f32: what most parameters were in."""
        self.not_compared: dict[str, str] = {}
        self.sequences = self._known(self.dump.sequences)
        self._groups = self._grouped()
        self._numbers, self._before = self._passes_of(), columns_before(self.dump)
        self._kept: OrderedDict[tuple[Place, int], Held | None] = OrderedDict()
        self._bytes = 0

    def _known(self, sequences: dict[int, Array]) -> dict[int, NDArray[np.int64]]:
        """Those whose tokens are all there. Raises NotPossible when there is none."""
        found = {number: tokens for number, tokens in sequences.items() if len(tokens) and (tokens >= 0).all()}
        for number in sequences.keys() - found.keys():
            self.not_compared[f"sequence {number}"] = "some of its tokens are not in the dump"
        if not found:
            raise NotPossible("the dump does not say which tokens were run", "record it with token ids as the input")
        return found

    def _grouped(self) -> dict[Place, dict[tuple[int, int], list[Item]]]:
        """{place: {(replica, pass): parts of the tensor}}"""
        groups: dict[Place, dict[tuple[int, int], list[Item]]] = {}
        for item in self.dump.items:
            entry = item.entry
            if entry.what not in _TAKEN or self.dump.pass_of(item).phase not in ("prefill", "decode"):
                continue
            if item.place is None or entry.axes[:1] != ("token",):
                self.not_compared.setdefault(f"{entry.name} {entry.what} {entry.slot}".strip(),
                                             "its rows are not those of tokens")
                continue
            place = Place(entry.name, entry.what, entry.slot, entry.call)
            key = item.dump.place.get("dp", 0), entry.pass_no
            groups.setdefault(place, {}).setdefault(key, []).append(item)
        return groups

    def _passes_of(self) -> dict[int, set[int]]:
        """{sequence: numbers of passes in which a rank has rows of it}"""
        found: dict[int, set[int]] = {number: set() for number in self.sequences}
        for passes in self.dump.passes.values():
            for each in passes.values():
                for rows in each.rows:
                    found.get(rows.sequence, set()).add(each.number)
        return found

    @property
    def places(self) -> list[Place]:
        """All places with rows of tokens."""
        return list(self._groups)

    @property
    def layout(self) -> str:
        """Of the run."""
        return self.dump.ranks[0].layout.text

    def passes(self, sequence: int) -> NDArray[np.int64]:
        """[positions]: number of the pass in which each token was run."""
        found = np.zeros(len(self.sequences[sequence]), dtype=np.int64)
        for passes in self.dump.passes.values():
            for each in passes.values():
                rows = positions(each.rows)
                own = rows[(rows[:, 0] == sequence) & (rows[:, 1] < len(found)), 1]
                found[own] = each.number
        return found

    def held(self, place: Place, sequence: int) -> Held | None:
        """None when nothing was recorded there for the sequence. The last ones are kept."""
        key = place, sequence
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = self._kept[key] = self._put_together(place, sequence)
        self._bytes += _size(found)
        while self._bytes > _CACHE and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])
        return found

    def _put_together(self, place: Place, sequence: int) -> Held | None:
        parts = []
        for (_, number), items in self._groups.get(place, {}).items():
            rows = self.dump.rows(items[0]) if number in self._numbers[sequence] else np.empty((0, 2), dtype=np.int64)
            own = np.flatnonzero((rows[:, 0] == sequence) & (rows[:, 1] < len(self.sequences[sequence])))
            if len(own):
                parts.append((rows[own, 1], _together(self.dump, items)[own]))
        if place.what == "output" and parts and all(_are_sets(values) for _, values in parts):
            width, before = max(values.shape[1] for _, values in parts), self._before.get(sequence, 0)
            parts = [(at, _positions(values - before, at, width)) for at, values in parts]
        return _held(parts, len(self.sequences[sequence]))

    def close(self) -> None:
        """Close its files."""
        self.dump.close()


def _are_sets(values: Array) -> bool:
    """[rows, k] of whole numbers: positions that are chosen."""
    return values.dtype.kind == "i" and values.ndim == 2


def _positions(chosen: Array, at: Array, width: int) -> Array:
    """[rows, width]: what is no position before the token's own, and what is not there, is its own."""
    own = np.broadcast_to(at[:, None], (len(at), width)).copy()
    own[:, : chosen.shape[1]] = np.where((chosen < 0) | (chosen > at[:, None]), at[:, None], chosen)
    return own


def _held(parts: Sequence[tuple[Array, Array]], length: int) -> Held | None:
    """Of (positions, [positions, ...]) of each pass; None where there are none, or they grow with the past, as masks
    and attention weights do."""
    if not parts or len({values[0].size for _, values in parts}) > 1:
        return None
    first = parts[0][1]
    whole, known = np.zeros((length, *first.shape[1:]), dtype=first.dtype), np.zeros(length, dtype=bool)
    for at, values in parts:
        whole[at], known[at] = values.reshape(len(at), *first.shape[1:]), True
    return Held(whole, known)


def _size(held: Held | None) -> int:
    return 0 if held is None else held.values.nbytes


def _together(dump: Dump, items: list[Item]) -> Array:
    """The whole tensor of what ranks hold of it; terms of a sum are added up. Raises StoreError when a part is gone."""
    first = items[0].entry
    if not first.held and not first.summed:
        return np.ascontiguousarray(_numbers(dump.read(items[0])))
    shape = list(first.shape)
    for held in first.held:
        shape[held.axis] = held.size
    made: Array | None = None
    filled = np.zeros(shape, dtype=bool)
    seen: set[Any] = set()
    for item in items:
        entry = item.entry
        term = tuple(item.dump.place.get(degree, 0) for degree in entry.summed)
        if (entry.held, term) in seen:
            continue
        seen.add((entry.held, term))
        part = _numbers(dump.read(item))
        made = np.zeros(shape, dtype=part.dtype) if made is None else made
        where = np.ix_(*[_indices(entry, axis, shape[axis]) for axis in range(len(shape))])
        made[where] += part
        filled[where] = True
    if made is None or not filled.all():
        raise StoreError(f"parts of {first.name} {first.what} are not in the dump", "record all ranks")
    return made


def _indices(entry: Any, axis: int, size: int) -> Array:
    for held in entry.held:
        if held.axis == axis:
            return np.concatenate([np.arange(start, end) for start, end in held.ranges])
    return np.arange(size)


def _numbers(values: Array) -> Array:
    return values.astype(np.float32, copy=False) if values.dtype.kind == "f" else values.astype(np.int64, copy=False)
