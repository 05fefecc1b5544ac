"""Places of which only statistics were kept."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from dayzero.runtime.golden import Dump, Item
from dayzero.schema.golden import PADDING
from dayzero.stages.check.measure import FAR


class Sums(NamedTuple):
    """Of all values of a place that are numbers."""

    values: int
    lost: int
    """NaN and infinities."""
    total: float
    square: float
    largest: float


def sums(dump: Dump, items: Sequence[Item]) -> Sums | None:
    """Of all pieces, each once; None where they do not tell it: padding is among the rows, or terms are to be added."""
    seen: dict[tuple[object, ...], Item] = {}
    for item in items:
        rows = item.entry.rows or dump.pass_of(item).rows
        if item.entry.summed or any(run.sequence == PADDING for run in rows):
            return None
        seen.setdefault((item.entry.held, rows), item)
    count = lost = 0
    total = square = largest = 0.0
    for item in seen.values():
        one = item.entry.statistics
        sound = one.count - one.nan - one.inf
        count, lost = count + sound, lost + one.nan + one.inf
        total, square = total + one.mean * sound, square + one.rms**2 * sound
        largest = max(largest, one.max_abs)
    return Sums(count, lost, total, square, largest)


def apart(x: Sums, r: Sums) -> float:
    """The least relative L2 that two sets of values with these sums can have.

    By the triangle inequality ||x - r|| is no less than the difference of the norms, nor than that of the means times
    the root of the count.
    """
    if x.lost != r.lost:
        return FAR
    if not r.square:
        return FAR if x.square else 0.0
    norms = abs(sqrt(x.square) - sqrt(r.square))
    means = abs(x.total - r.total) / sqrt(r.values)
    return max(norms, means) / sqrt(r.square)
