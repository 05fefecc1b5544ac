"""What tokens two rows of logits would choose, and how far apart their distributions are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .metrics import Values
from .places import Index

TOP = 10
"""Likeliest tokens that are compared as a set."""
_PART = 64


Different = np.dtype([("key", "i8"), ("a", "i8"), ("a_margin", "f8"), ("b", "i8"), ("b_margin", "f8"), ("lead", "f8")])
"""A row in which the likeliest tokens differ: `a` of the reference and `b` of the candidate, by how much each leads
over its second, and by how much `a` leads over `b` in the reference. `key`: (sequence, position) of the row."""


class Choices(NamedTuple):
    """Sums over rows."""

    rows: int
    """Rows."""
    same: int
    """Rows with the same likeliest token."""
    top: float
    """Sum of the share of the reference's TOP that are the candidate's too."""
    kl: float
    """Sum of KL(reference || candidate), nats."""
    kl_max: float
    """Largest of a row."""
    margin: float
    """Largest margin in the reference by which its likeliest token led over the candidate's."""
    margins: NDArray[np.float64]
    """Of each row: by how much the reference's likeliest token leads over its second."""
    different: NDArray[Any]
    """[rows that differ] of `Different`, where rows are known."""

    def plus(self, other: Choices) -> Choices:
        """Of both."""
        return Choices(self.rows + other.rows, self.same + other.same, self.top + other.top, self.kl + other.kl,
                       max(self.kl_max, other.kl_max), max(self.margin, other.margin),
                       np.concatenate([self.margins, other.margins]), np.concatenate([self.different, other.different]))


NONE = Choices(0, 0, 0.0, 0.0, 0.0, 0.0, np.empty(0), np.empty(0, Different))


def choices(x: Values, r: Values, keys: Index | None = None) -> Choices:
    """Of rows [n, vocabulary]; `keys`: (sequence, position) of each. A row with NaN has an infinite divergence."""
    if not x.size:
        return NONE
    best, own = r.argmax(axis=1), x.argmax(axis=1)
    at, k = np.arange(len(x)), min(TOP, x.shape[1])
    with np.errstate(invalid="ignore"):
        lead = np.nan_to_num(r[at, best] - r[at, own], nan=np.inf)
    tops = [np.stack([likeliest(row, k) for row in rows]) for rows in (r, x)]
    shared = sum(len(np.intersect1d(one, two, assume_unique=True)) for one, two in zip(*tops, strict=True)) / k
    margins = [_margins(rows, top) for rows, top in zip((r, x), tops, strict=True)]
    kl = divergence(log_softmax(r), log_softmax(x))
    other = best != own
    return Choices(len(x), int((~other).sum()), shared, float(kl.sum()), float(kl.max()),
                   float(lead[other].max(initial=0.0)), margins[0],
                   _listed(keys, best, margins[0], own, margins[1], lead)[other if keys is not None else slice(0)])


def _margins(rows: Values, top: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how much the largest of each row leads over the second; 0 where one is no number, or there is no second."""
    values = np.sort(np.take_along_axis(rows, top, 1).astype(np.float64), axis=1)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(values[:, -1] - values[:, -min(2, values.shape[1])], nan=0.0, posinf=0.0)


def _listed(keys: Index | None, *columns: NDArray[Any]) -> NDArray[Any]:
    made = np.empty(len(columns[0]), Different)
    for name, column in zip(Different.names or (), (np.int64(-1) if keys is None else keys, *columns), strict=True):
        made[name] = column
    return made


def likeliest(row: Values, k: int) -> NDArray[np.int64]:
    """Indices of the k largest, NaN first, in no order. Those are among the values that are at least the k-th largest
    of the largest ones of many parts, which leaves few to choose from."""
    parts = len(row) // _PART
    if parts > k:
        largest = row[: parts * _PART].reshape(_PART, parts).max(axis=0)
        few = np.flatnonzero(~(row < np.partition(largest, -k)[-k]))
        return few[np.argpartition(row[few], -k)[-k:]]
    return np.argpartition(row, -k)[-k:]


def log_softmax(logits: Values) -> Values:
    """Of each row; where no logit is finite, NaN."""
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def divergence(p: Values, q: Values) -> NDArray[np.float64]:
    """KL(p || q) of each row of log-probabilities; infinite where it is no number."""
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
        total = terms.sum(axis=1, dtype=np.float64)
    return np.asarray(np.maximum(np.nan_to_num(total, nan=np.inf), 0.0))
