"""A fused module against its parts: columns of a grid, several grids as one, and the order that the values show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from dayzero.runtime.golden.values import Array

from .assemble import Grid
from .metrics import relative
from .places import Index

_TRIED_ROWS, _TRIED_GROUPS, _TRIED_PARTS = 32, 4096, 4


class Sliced:
    """Some columns of a grid as a grid of their own."""

    def __init__(self, grid: Grid, index: Index) -> None:
        at = np.searchsorted(grid.columns, index)
        there = (at < len(grid.columns)) & (grid.columns[np.minimum(at, len(grid.columns) - 1)] == index)
        self._grid, self._at = grid, at[there]
        self.columns = np.flatnonzero(there)
        self.keys, self.width, self.dtype, self.extra = grid.keys, len(index), grid.dtype, grid.extra
        self.order = grid.order

    def tokens(self, keys: Index) -> Index | None:
        """See `Grid.tokens`."""
        return self._grid.tokens(keys)

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """See `Grid.read`."""
        at = self._at if columns is None else self._at[np.searchsorted(self.columns, columns)]
        return np.ascontiguousarray(self._grid.read(keys)[:, at])


class Joined:
    """Several grids whose columns together are one's."""

    def __init__(self, grids: Sequence[Grid], indices: Sequence[Index]) -> None:
        self._grids, self._indices = grids, [index[grid.columns] for grid, index in zip(grids, indices, strict=True)]
        self.columns = np.sort(np.concatenate(self._indices))
        self.keys = grids[0].keys
        for grid in grids[1:]:
            self.keys = np.intersect1d(self.keys, grid.keys)
        self.width, self.dtype = sum(grid.width for grid in grids), grids[0].dtype
        self.extra, self.order = grids[0].extra, grids[0].order

    def tokens(self, keys: Index) -> Index | None:
        """See `Grid.tokens`."""
        return self._grids[0].tokens(keys)

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """See `Grid.read`."""
        blocks = [grid.read(keys) for grid in self._grids]
        made = np.empty((len(keys), len(self.columns)), np.result_type(*blocks))
        for block, index in zip(blocks, self._indices, strict=True):
            made[:, np.searchsorted(self.columns, index)] = block
        return made if columns is None else np.ascontiguousarray(made[:, np.searchsorted(self.columns, columns)])


class Summed:
    """Grids of one width whose sum is one's, over the rows that all have."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        self._grids, first = grids, grids[0]
        self.columns, self.width, self.dtype, self.extra = first.columns, first.width, first.dtype, first.extra
        self.keys, self.order = first.keys, first.order
        for grid in grids[1:]:
            self.keys = np.intersect1d(self.keys, grid.keys)
            self.columns = np.intersect1d(self.columns, grid.columns)

    def tokens(self, keys: Index) -> Index | None:
        """See `Grid.tokens`."""
        return self._grids[0].tokens(keys)

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """See `Grid.read`."""
        asked = self.columns if columns is None else columns
        total = self._grids[0].read(keys, asked)
        for grid in self._grids[1:]:
            total = total + grid.read(keys, asked)
        return total


class Order(NamedTuple):
    """How parts lie in the columns of one."""

    order: tuple[int, ...]
    """Number of the part, in the order in which they follow each other."""
    groups: int
    """How often that is repeated, each time with this share of every part."""


def part_columns(widths: Sequence[int], found: Order) -> list[Index]:
    """For each part, the columns of the whole that are its own, in its order."""
    shares = [width // found.groups for width in widths]
    before, start = dict[int, int](), 0
    for number in found.order:
        before[number], start = start, start + shares[number]
    group = np.arange(found.groups, dtype=np.int64)[:, None] * start
    return [(group + before[number] + np.arange(share, dtype=np.int64)).reshape(-1)
            for number, share in enumerate(shares)]


def match(theirs: Mapping[int, Grid], ours: Mapping[int, Grid]) -> dict[int, int]:
    """{number of theirs: number of ours}, each once, the nearest pairs first, over a few rows of each."""
    distances = []
    for number, one in theirs.items():
        for other_number, other in ours.items():
            keys = np.intersect1d(one.keys, other.keys)
            keys = keys[:: max(1, len(keys) // _TRIED_ROWS)]
            if len(keys) and np.array_equal(one.columns, other.columns):
                r, x = one.read(keys).astype(np.float64), other.read(keys).astype(np.float64)
                apart = relative(float(((x - r) ** 2).sum()), float((r**2).sum()))
                distances.append((apart, number != other_number, number, other_number))
    found: dict[int, int] = {}
    for _, _, number, other_number in sorted(distances):
        if number not in found and other_number not in found.values():
            found[number] = other_number
    return found


def find_order(whole: Grid, parts: Sequence[Grid]) -> tuple[Order, float]:
    """The order in which the parts are nearest to the whole, and the relative L2 of that, over a few rows.

    Tried are all orders of up to four parts, each once and repeated as often as divides every part.
    """
    widths = [part.width for part in parts]
    keys = whole.keys
    for part in parts:
        keys = np.intersect1d(keys, part.keys)
    listed = tuple(range(len(parts)))
    if not len(keys) or len(whole.columns) < whole.width or any(len(part.columns) < part.width for part in parts):
        return Order(listed, 1), float("inf")
    keys = keys[:: max(1, len(keys) // _TRIED_ROWS)]
    x, blocks = whole.read(keys), [part.read(keys) for part in parts]
    length = float((x.astype(np.float64) ** 2).sum())
    shared = int(np.gcd.reduce(widths))
    orders = list(permutations(listed)) if len(parts) <= _TRIED_PARTS else [listed]
    best, least = Order(listed, 1), float("inf")
    for groups in (each for each in range(1, min(shared, _TRIED_GROUPS) + 1) if shared % each == 0):
        for order in orders:
            tried = Order(order, groups)
            gap = sum(float(((x[:, index] - block).astype(np.float64) ** 2).sum())
                      for index, block in zip(part_columns(widths, tried), blocks, strict=True))
            if gap < least:
                best, least = tried, gap
    return best, relative(least, length)
