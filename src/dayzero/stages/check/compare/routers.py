"""A router's decisions as sets. Two sets may differ when the scores that decide lie as near as noise moves them.

Nothing is known of the rule that a router chooses by but that it takes the sets with the largest sum of a score that
does not fall with what was recorded, plus a constant for each expert (a bias; none). Both runs choose by the same rule,
so what the second took instead must have gained on what it left: that is `consistent`. It needs neither rule nor bias.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.floats import ROUNDOFF

from .metrics import Values
from .places import Index

Chosen = NDArray[np.int64]
_ROUNDINGS = 8
"""Roundoffs of a score within which a gain counts as none: adding a bias, sums of a group."""
_MOST = 0.99
"""Share of rows that chose the largest scores where that is the rule; ties are the others."""
_ROWS = 32
"""Rows that are needed to say that choices keep to groups of experts."""


class Flips(NamedTuple):
    """Rows of a router in which the sets differ."""

    rows: Index
    """Which rows of those that were given."""
    gap: NDArray[np.float64]
    """Most by which the scores of what was taken and what was left moved against each other, or lay apart in the
    reference where the largest scores are chosen; infinite where that does not explain the flip."""
    overlap: float
    """Mean share of the chosen that both chose, over all rows."""


def members(chosen: Chosen, experts: int) -> NDArray[np.bool_]:
    """[rows, experts]: which are chosen. Indices out of range count for none."""
    made = np.zeros((len(chosen), experts + 1), bool)
    inside = np.where((chosen >= 0) & (chosen < experts), chosen, experts)
    np.put_along_axis(made, inside, True, axis=1)
    return made[:, :experts]


def flips(a: Chosen, b: Chosen, scores_a: Values | None, scores_b: Values | None, dtype: str) -> Flips:
    """Decisions [rows, k] and the scores [rows, experts] that they were made from; `dtype`: the scores' coarser one.

    Without scores every flip has an infinite gap.
    """
    experts = scores_a.shape[1] if scores_a is not None else int(max(a.max(initial=0), b.max(initial=0))) + 1
    ours, theirs = members(b, experts), members(a, experts)
    both = (ours & theirs).sum(axis=1)
    overlap = float((both / np.maximum(1, theirs.sum(axis=1))).mean()) if len(a) else 1.0
    rows = np.flatnonzero((ours != theirs).any(axis=1))
    if scores_a is None or scores_b is None:
        return Flips(rows, np.full(len(rows), np.inf), overlap)
    taken, left = ours[rows] & ~theirs[rows], theirs[rows] & ~ours[rows]
    old, new = scores_a[rows].astype(np.float64), scores_b[rows].astype(np.float64)
    moved = np.abs(new - old)
    gap = np.where(taken, moved, 0).max(axis=1, initial=0) + np.where(left, moved, 0).max(axis=1, initial=0)
    fair = _consistent(old, new, taken, left, dtype) | _other_groups(theirs, ours, rows)
    if _direct(theirs, scores_a):
        lead = np.where(left, old, -np.inf).max(axis=1, initial=-np.inf) - np.where(taken, old, np.inf).min(
            axis=1, initial=np.inf)
        gap = np.maximum(gap, np.nan_to_num(lead, nan=np.inf, neginf=0.0))
    return Flips(rows, np.where(fair & np.isfinite(gap), gap, np.inf), overlap)


def _direct(theirs: NDArray[np.bool_], scores: Values) -> bool:
    """Whether the reference chose the largest scores, without a bias or groups."""
    last = np.where(theirs, scores, np.inf).min(axis=1, initial=np.inf)
    first = np.where(theirs, -np.inf, scores).max(axis=1, initial=-np.inf)
    return bool((last >= first).mean() > _MOST) if len(theirs) else False


def _consistent(old: Values, new: Values, taken: NDArray[np.bool_], left: NDArray[np.bool_], dtype: str
                ) -> NDArray[np.bool_]:
    """Whether what was taken gained on what was left, in the scores as they are or through the usual functions."""
    fair = np.zeros(len(old), bool)
    for function in (_same, _sigmoid, _softmax):
        before, after = function(old), function(new)
        gain = ((after - before) * (taken.astype(float) - left)).sum(axis=1)
        slack = _ROUNDINGS * ROUNDOFF.get(dtype, ROUNDOFF["F32"]) * (np.abs(before) * (taken | left)).sum(axis=1)
        fair |= gain >= -slack
    return fair


def _other_groups(theirs: NDArray[np.bool_], ours: NDArray[np.bool_], rows: Index) -> NDArray[np.bool_]:
    """Of the rows, those that chose from other groups of experts, where choices keep to few groups: then sums of
    a whole group's scores decide, which the experts alone do not tell."""
    experts = theirs.shape[1]
    fair = np.zeros(len(rows), bool)
    for size in (size for size in range(2, experts // 2 + 1) if experts % size == 0):
        grouped = [np.asarray(each.reshape(len(each), -1, size).any(axis=2)) for each in (theirs, ours)]
        most = int(grouped[0].sum(axis=1).max(initial=0))
        free = min(int(theirs.sum(axis=1).max(initial=0)), experts // size)
        if len(theirs) >= _ROWS and most < free:
            fair |= (grouped[0][rows] != grouped[1][rows]).any(axis=1)
    return fair


def _same(scores: Values) -> Values:
    return scores


def _sigmoid(scores: Values) -> Values:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-scores)))


def _softmax(scores: Values) -> Values:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
