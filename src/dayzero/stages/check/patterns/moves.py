"""Channels in another order, and tokens that have the values of others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.schema.located import Pattern

from .facts import Array, Difference, Facts
from .subsets import NARROW

_WIDEST = 4096
_ALIKE = 0.9
"""Cosine from which a channel counts as another one."""
_FEWEST = 4


def moves(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Permutations of channels, of heads, and shifts of rows."""
    yield from _shifted(difference, facts)
    if not (1 < difference.width <= _WIDEST) or len(difference.d) < _FEWEST:
        return
    found = _sources(difference.x, difference.r)
    source, sign = found if found is not None else (np.arange(difference.width), np.ones(difference.width))
    moved = np.flatnonzero((source != np.arange(difference.width)) | (sign < 0))
    if len(moved):
        share = difference.left(difference.r[:, source] * sign)
        what = "sign" if (source == np.arange(difference.width)).all() else "permutation"
        yield Pattern(name=what, explained=share, words=_words(source, sign, moved))
    yield from _heads(difference, facts)


def _sources(x: Array, r: Array) -> tuple[Array, Array] | None:
    """(for each channel of x the one of r that it is like, its sign); None when that is not clear for most that
    differ. A channel that is its own stays."""
    size_x, size_r = np.linalg.norm(x, axis=0), np.linalg.norm(r, axis=0)
    alike = (x / np.where(size_x, size_x, 1)).T @ (r / np.where(size_r, size_r, 1))
    own = np.arange(x.shape[1])
    source = np.abs(alike).argmax(1)
    best = alike[own, source]
    source = np.where((alike[own, own] > _ALIKE) | (np.abs(best) < _ALIKE), own, source)
    clear = (np.abs(best) >= _ALIKE) | (size_x == 0)
    wrong = alike[own, own] < _ALIKE
    if wrong.any() and clear[wrong].mean() < _ALIKE:
        return None
    return source, np.where(alike[own, source] < 0, -1.0, 1.0)


def _words(source: Array, sign: Array, moved: Array) -> str:
    size = len(source)
    own = np.arange(size)
    for name, order in _orders(size):
        if np.array_equal(source, order):
            return f"channels are in another order: {name}"
    if (source == own).all():
        return f"{len(moved)} of {size} channels have the other sign"
    if len(moved) == 2 and source[moved[0]] == moved[1] and source[moved[1]] == moved[0]:
        return f"channels {moved[0]} and {moved[1]} are exchanged: rows of a weight"
    for width in (size // parts for parts in (64, 32, 16, 8, 4, 2) if size % parts == 0 and size // parts > 2):
        inside = source - own // width * width
        if ((inside >= 0) & (inside < width)).all() and (inside.reshape(-1, width) == inside[:width]).all():
            name = next((name for name, order in _orders(width) if np.array_equal(inside[:width], order)), "")
            return f"channels are in another order in each group of {width}" + (f": {name}" if name else "")
    first, end = int(moved[0]), int(moved[-1])
    return f"{len(moved)} of {size} channels (from {first} to {end}) have the values of others: rows of a weight are " \
           "in another order"


def _orders(size: int) -> list[tuple[str, Array]]:
    own = np.arange(size)
    found = [("shifted by one", np.roll(own, 1)), ("shifted back by one", np.roll(own, -1)), ("reversed", own[::-1])]
    if size % 2 == 0:
        found = [("the two halves are exchanged", np.roll(own, size // 2)), *found,
                 ("halves are interleaved", own.reshape(2, -1).T.reshape(-1)),
                 ("every other channel comes first", own.reshape(-1, 2).T.reshape(-1)),
                 ("neighbours are exchanged", own.reshape(-1, 2)[:, ::-1].reshape(-1))]
    return found


def _heads(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Whole heads in the place of others."""
    for count in facts.heads:
        if count < 2 or difference.width % count or difference.width // count < NARROW:
            continue
        x, r = (each.reshape(len(each), count, -1).transpose(1, 0, 2).reshape(count, -1)
                for each in (difference.x, difference.r))
        found = _sources(x.T, r.T)
        if found is None or (found[0] == np.arange(count)).all():
            continue
        source = found[0]
        made = difference.r.reshape(len(difference.r), count, -1)[:, source].reshape(difference.r.shape)
        order = ", ".join(str(each) for each in source[:8].tolist()) + (", ..." if count > 8 else "")
        yield Pattern(name="heads", explained=difference.left(made), words=f"heads have the values of others: {order} "
                      f"of {count}")


def _shifted(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Every token has the values of a neighbour in its sequence."""
    count = len(difference.d)
    sequences = facts.sequences if facts.sequences is not None else np.zeros(count, dtype=np.int64)
    for by, words in ((1, "the one before it"), (-1, "the one behind it")):
        if count <= abs(by) + 1:
            continue
        made = np.roll(difference.r, by, axis=0)
        edge = np.roll(sequences, by) != sequences
        edge[0 if by > 0 else -1] = True
        made[edge] = difference.x[edge]
        yield Pattern(name="shift of rows", explained=difference.left(made),
                      words=f"every token has the values of {words}: positions are off by one")
