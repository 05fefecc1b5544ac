"""One tensor put together again from what ranks and passes recorded of it.

Rows are found by what they are: (sequence, position) where the first axis is tokens, else their index in the whole
tensor. Columns are found by their index in the whole. What several ranks hold alike is read from the first of them;
what must be added up is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from dayzero.errors import StoreError
from dayzero.runtime.golden import Dump, Item
from dayzero.runtime.golden.columns import columns_before
from dayzero.runtime.golden.values import AGAIN, Array, decoded
from dayzero.schema.golden import Rows

from .pieces import Piece, piece_of
from .places import Address, Index, Places, places_of


class Grid(Protocol):
    """Rows by columns that can be read in parts."""

    keys: Index
    """What each row is, rising."""
    columns: Index
    """Which columns of the whole there are, rising."""
    width: int
    """Columns of the whole."""
    dtype: str
    """As computed."""
    extra: int
    """Rows of each token, where keys are of tokens: `key // extra` is (sequence, position); 0: they are indices."""

    order: tuple[Rows, ...]
    """Rows of the pass in whose order an activation has its own, where they have only indices."""

    def tokens(self, keys: Index) -> Index | None:
        """(sequence, position) that each row is of; None when it is not known."""

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """[keys, columns] of the asked rows, all of them there, and of all columns or the asked ones."""


class _Cover:
    """Pieces with the same columns: which of them has which row."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces, self.columns = pieces, pieces[0].columns
        keys = np.concatenate([each.keys for each in pieces])
        owner = np.concatenate([np.full(len(each.keys), number) for number, each in enumerate(pieces)])
        row = np.concatenate([np.arange(len(each.keys)) for each in pieces])
        order = np.argsort(keys, kind="stable")
        order = order[keys[order] >= 0]
        first = np.concatenate([[True], keys[order][1:] != keys[order][:-1]]) if len(order) else np.empty(0, bool)
        self.keys, self._owner, self._row = (each[order][first] for each in (keys, owner, row))
        self.again: list[int] = np.unique(owner[order][~first]).tolist()
        """Pieces with rows that an earlier one has too."""

    def read(self, keys: Index) -> Array:
        """[keys, columns]."""
        at = np.searchsorted(self.keys, keys)
        return self._runs(self._owner[at], self._row[at])

    def read_piece(self, number: int, keys: Index) -> Array:
        """The same of one piece."""
        order = np.argsort(self.pieces[number].keys, kind="stable")
        row = order[np.searchsorted(self.pieces[number].keys, keys, sorter=order)]
        return self._runs(np.full(len(keys), number), row)

    def _runs(self, owner: Index, row: Index) -> Array:
        """Rows that follow each other in one piece are read together."""
        cuts = np.flatnonzero((owner[1:] != owner[:-1]) | (row[1:] != row[:-1] + 1)) + 1
        parts = [self._rows(self.pieces[int(owner[start])], int(row[start]), end - start)
                 for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(row)], strict=True) if end > start]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty((0, len(self.columns)))

    def _rows(self, piece: Piece, first: int, count: int) -> Array:
        place, dtype, width = piece.item.place, piece.item.entry.dtype, len(self.columns)
        assert place is not None
        rows = prod(piece.item.entry.kept_shape) // width if width else 0
        size = place.nbytes // rows if rows else 0
        raw = piece.dump.files.read(place.path, place.start + first * size, count * size)
        return decoded(raw, dtype).reshape(count, width)


class Known(NamedTuple):
    """A dump and its addresses."""

    dump: Dump
    places: Places

    def tensor(self, address: Address) -> Assembled:
        """What lies there. Raises StoreError as `Assembled` does."""
        return Assembled(self.dump, self.places[address])


def known(dump: Dump) -> Known:
    """All addresses of it."""
    return Known(dump, places_of(dump))


class Assembled:
    """A tensor of one dump. Raises StoreError when its pieces do not fit together."""

    def __init__(self, dump: Dump, items: Iterable[Item]) -> None:
        pieces = [piece_of(dump, item) for item in items if item.place is not None]
        if not pieces:
            raise StoreError("no values were kept", "record it with --mode whole or sampled")
        self.pieces, first = pieces, pieces[0]
        self.width, self.extra, self.dtype = first.width, first.extra, first.item.entry.dtype
        if any((each.width, each.extra) != (self.width, self.extra) for each in pieces):
            name = first.item.entry.name or "the model"
            raise StoreError(f"ranks recorded {name} in shapes that do not fit together", AGAIN)
        self.order = () if self.extra else _order(dump, [each.item for each in pieces])
        self._terms = [self._covers(own) for own in _terms(pieces).values()]
        self.columns = _common([_union([cover.columns for cover in term]) for term in self._terms])
        self.keys = _common([_common([cover.keys for cover in term]) for term in self._terms])

    @staticmethod
    def _covers(pieces: list[Piece]) -> list[_Cover]:
        alike: dict[bytes, list[Piece]] = {}
        for piece in pieces:
            alike.setdefault(piece.columns.tobytes(), []).append(piece)
        return [_Cover(each) for each in alike.values()]

    def tokens(self, keys: Index) -> Index | None:
        """See `Grid.tokens`."""
        if self.extra:
            return keys // self.extra
        first = self.pieces[0]
        return first.tokens[np.searchsorted(first.keys, keys)] if len(first.tokens) and len(self.pieces) == 1 else None

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """See `Grid.read`."""
        total = self._term(self._terms[0], keys)
        for term in self._terms[1:]:
            total = total + self._term(term, keys)
        if columns is None or len(columns) == len(self.columns):
            return total
        return np.ascontiguousarray(total[:, np.searchsorted(self.columns, columns)])

    def _term(self, covers: list[_Cover], keys: Index) -> Array:
        if len(covers) == 1 and np.array_equal(covers[0].columns, self.columns):
            return covers[0].read(keys)
        made: Array | None = None
        for cover in covers:
            block = cover.read(keys)
            if made is None:
                made = np.empty((len(keys), len(self.columns)), block.dtype)
            at = np.searchsorted(self.columns, cover.columns)
            kept = (at < len(self.columns)) & (self.columns[np.minimum(at, len(self.columns) - 1)] == cover.columns)
            made[:, at[kept]] = block[:, kept]
        assert made is not None
        return made

    @property
    def has_replicas(self) -> bool:
        """Whether a row is held by several ranks."""
        return any(cover.again for term in self._terms for cover in term)

    @property
    def replicas(self) -> list[tuple[Piece, Piece, Index]]:
        """(a piece, another of the same columns and rows on another rank, their common keys), unless their bytes are
        the same by what was written down of them."""
        found = []
        for cover in (each for term in self._terms for each in term):
            for number in cover.again:
                mine = cover.pieces[number]
                for other in cover.pieces[:number]:
                    if other.item.dump.place.get("pp", 0) != mine.item.dump.place.get("pp", 0):
                        continue  # stages compute different parts; what both name is one's own and a stand-in
                    keys = np.intersect1d(mine.keys, other.keys)
                    keys = keys[keys >= 0]
                    if len(keys) and not _same_bytes(mine, other):
                        found.append((other, mine, keys))
                        break
        return found


class Ragged:
    """Sets of each token, of different sizes: [tokens, the largest], with -1 for what is not there."""

    extra = 1
    order: tuple[Rows, ...] = ()

    def __init__(self, dump: Dump, items: Iterable[Item]) -> None:
        widths: dict[int, list[Item]] = {}
        for item in items:
            widths.setdefault(item.entry.shape[-1], []).append(item)
        self._grids = [Assembled(dump, own) for own in widths.values()]
        self.before = columns_before(dump)
        self.width, self.dtype = max(widths), self._grids[0].dtype
        self.columns, self.keys = np.arange(self.width), _union([grid.keys for grid in self._grids])
        if any(grid.extra != 1 or len(grid.columns) != grid.width for grid in self._grids):
            raise StoreError("choices were recorded of no tokens, or not whole", AGAIN)

    def tokens(self, keys: Index) -> Index:
        """See `Grid.tokens`."""
        return keys

    def read(self, keys: Index, columns: Index | None = None) -> Array:
        """See `Grid.read`."""
        made = np.full((len(keys), self.width), -1, np.int64)
        for grid in self._grids:
            own = np.isin(keys, grid.keys, assume_unique=True)
            if own.any():
                made[own, : grid.width] = grid.read(keys[own])
        return made if columns is None else made[:, columns]


def read_piece(piece: Piece, keys: Index) -> Array:
    """Rows of one piece alone, by their keys."""
    return _Cover([piece]).read(keys)


def _order(dump: Dump, items: Sequence[Item]) -> tuple[Rows, ...]:
    """Rows of the pass in whose order an activation has its own, where these have only indices; none for parameters.

    Raises StoreError where several passes, or ranks with other tokens, have rows of the same indices.
    """
    if items[0].entry.what not in ("input", "output"):
        return ()
    found = {dump.pass_of(item).rows for item in items}
    if len(found) > 1 or len({item.entry.pass_no for item in items}) > 1:
        raise StoreError("nothing says which rows of several passes are which", "record it in one pass")
    return found.pop()


def _terms(pieces: list[Piece]) -> dict[tuple[int, ...], list[Piece]]:
    """Pieces by the place of their ranks along the degrees over which values are summed."""
    found: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        where = tuple(piece.item.dump.place.get(each, 0) for each in piece.item.entry.summed)
        found.setdefault(where, []).append(piece)
    return found


def _same_bytes(one: Piece, other: Piece) -> bool:
    return (one.item.entry.digest == other.item.entry.digest and len(one.keys) == len(other.keys)
            and bool((one.keys == other.keys).all()))


def _union(several: list[Index]) -> Index:
    return _rising(np.concatenate(several) if len(several) > 1 else several[0])


def _common(several: list[Index]) -> Index:
    found = _rising(several[0])
    for each in several[1:]:
        found = found if np.array_equal(found, each) else np.intersect1d(found, each)
    return found


def _rising(index: Index) -> Index:
    """In order, each once; as it is when it is so."""
    return index if bool((index[1:] > index[:-1]).all()) else np.unique(index)
