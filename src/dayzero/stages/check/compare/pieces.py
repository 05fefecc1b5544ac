"""What one rank recorded in one pass: where its rows and columns belong in the whole tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from dayzero.runtime.golden import Dump, Item
from dayzero.runtime.golden.dump import positions
from dayzero.schema.golden import PADDING, Entry, Pass

from .places import Index

_SHIFT = 28
"""Bits of a position; sequences and what is beside tokens have the others of 62."""


class Piece(NamedTuple):
    """What one rank recorded in one pass."""

    dump: Dump
    item: Item
    keys: Index
    columns: Index
    width: int
    """Columns of the whole."""
    extra: int
    """As `Grid.extra`."""
    tokens: Index
    """(sequence, position) of each row; empty: not known."""


def row_key(sequence: Index, position: Index) -> Index:
    """One number for (sequence, position)."""
    return (sequence << _SHIFT) | position


def split_key(keys: Index) -> tuple[Index, Index]:
    """(sequences, positions)."""
    return keys >> _SHIFT, keys & ((1 << _SHIFT) - 1)


def piece_of(dump: Dump, item: Item) -> Piece:
    """Where the rows and columns of an item belong in the whole. Padding has the key -1."""
    entry = item.entry
    shape, indices = list(entry.shape), _indices(entry)
    for held in entry.held:
        shape[held.axis] = held.size
    if len(rows := dump.rows(item)):
        tokens = _tokens(rows)
        return Piece(dump, item, tokens, _mesh(indices[1:], shape[1:]), prod(shape[1:]), 1, tokens)
    made = dump.pass_of(item)
    columns, width = _mesh(indices[-1:], shape[-1:]), prod(shape[-1:])
    every = _tokens(positions(made.rows)) if not entry.rows else np.empty(0, np.int64)
    if (where := _token_axes(entry, made, len(every))) is not None:
        batch, position = where
        row = _spread(indices[:-1], {batch: made.shape[1] if shape[batch] > 1 else 0, position: 1})
        others = [axis for axis in range(len(shape) - 1) if axis not in where]
        steps = dict(zip(others, np.cumprod([1, *(shape[axis] for axis in reversed(others))])[-2::-1].tolist(),
                         strict=True))
        extra, tokens = prod(shape[axis] for axis in others), every[row]
        keys = np.where(tokens < 0, -1, tokens * extra + _spread(indices[:-1], steps))
        return Piece(dump, item, keys, columns, width, extra, tokens)
    keys, times = _mesh(indices[:-1], shape[:-1]), shape[0] // max(1, len(every)) if len(shape) == 2 else 0
    several = times > 1 and times * len(every) == shape[0] and not entry.held
    return Piece(dump, item, keys, columns, width, 0, every[keys // times] if several else np.empty(0, np.int64))


def _tokens(rows: Index) -> Index:
    """One number for each (sequence, position), -1 for padding."""
    return np.where(rows[:, 0] == PADDING, -1, row_key(rows[:, 0], rows[:, 1]))


def _token_axes(entry: Entry, made: Pass, rows: int) -> tuple[int, int] | None:
    """(axis of the batch, axis of positions) where the axes are not tokens first: told, or heads between the two, as
    [batch, heads, positions, width]; None where there are none."""
    if len(made.shape) != 2 or prod(made.shape) != rows or not rows:
        return None
    batch, length = made.shape
    if entry.axes[:2] == ("batch", "position") and entry.shape[0] in (1, batch) and entry.shape[1] == length:
        return 0, 1
    if len(entry.shape) == 4 and entry.shape[0] == batch and entry.shape[2] == length != entry.shape[1]:
        return 0, 2
    return None


def _spread(indices: Sequence[Index], steps: Mapping[int, int]) -> Index:
    """For each combination of the indices, the last axis fastest, the sum of each index times its axis's step."""
    flat = np.zeros(1, np.int64)
    for axis, index in enumerate(indices):
        flat = (flat[:, None] + index * steps.get(axis, 0)).reshape(-1)
    return flat


def _indices(entry: Entry) -> list[Index]:
    """For each axis, the index in the whole tensor of everything that was kept along it."""
    found = [np.arange(extent, dtype=np.int64) for extent in entry.shape]
    for held in entry.held:
        found[held.axis] = held.indices
    if entry.sample is not None and found:
        if entry.sample.rows is not None:
            found[0] = found[0][entry.sample.rows.values]
        if entry.sample.columns is not None:
            found[-1] = found[-1][entry.sample.columns.values]
    return found


def _mesh(indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """Flat index in `shape` of each combination, the last axis fastest."""
    flat = np.zeros(1, np.int64)
    for index, extent in zip(indices, shape, strict=True):
        flat = (flat[:, None] * extent + index).reshape(-1)
    return flat
