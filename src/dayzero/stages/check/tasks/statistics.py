"""Intervals of differences, and the smallest difference that a number of items shows."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL, POWER = 0.95, 0.8
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
"""1.96: two-sided 5 %."""
Z_POWER = NormalDist().inv_cdf(POWER)
"""0.84: four of five."""
RESAMPLES, SEED = 4000, 20
"""Of the bootstrap; the same items give the same interval."""


class Interval(NamedTuple):
    """A difference with its 95 % interval, and the smallest loss that is seen with 80 % power."""

    difference: float
    low: float
    high: float
    detectable: float
    method: str


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    share, square = right / count, Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def two_shares(baseline: tuple[int, int], candidate: tuple[int, int]) -> Interval:
    """Of (right, count) each: other items, or the same ones of which only counts are known (Newcombe 1998)."""
    (right, count), (ours, of) = baseline, candidate
    first, second = right / count, ours / of
    (low_1, high_1), (low_2, high_2) = wilson(right, count), wilson(ours, of)
    gap = second - first
    low = gap - sqrt((second - low_2) ** 2 + (high_1 - first) ** 2)
    high = gap + sqrt((high_2 - second) ** 2 + (first - low_1) ** 2)
    mean = min(max((right + ours) / (count + of), 1 / (count + of)), 1 - 1 / (count + of))
    detectable = (Z + Z_POWER) * sqrt(mean * (1 - mean) * (1 / count + 1 / of))
    return Interval(gap, low, high, min(1.0, detectable), "counts only: Wilson limits, combined (Newcombe 1998)")


def paired_shares(baseline: Floats, candidate: Floats) -> Interval:
    """Of items that are 0 or 1, each answered by both (Newcombe 1998, paired, method 10)."""
    count = len(baseline)
    both = int((baseline * candidate).sum())
    lost, won = int(baseline.sum()) - both, int(candidate.sum()) - both
    neither = count - both - lost - won
    first, second = (both + lost) / count, (both + won) / count
    (low_1, high_1), (low_2, high_2) = wilson(both + lost, count), wilson(both + won, count)
    related = _correlation(both, lost, won, neither)
    gap, below, above = second - first, second - low_2, high_1 - first
    low = gap - sqrt(max(0.0, below**2 - 2 * related * below * above + above**2))
    below, above = high_2 - second, first - low_1
    high = gap + sqrt(max(0.0, below**2 - 2 * related * below * above + above**2))
    return Interval(gap, max(-1.0, low), min(1.0, high), _mcnemar(lost + won, count),
                    "paired items: Wilson limits with their correlation (Newcombe 1998)")


def paired_numbers(baseline: Floats, candidate: Floats, weights: Floats) -> Interval:
    """Of items with a number each: bootstrap over items of the weighted mean difference (Efron 1979), at the quantiles
    that make up for few items (Hesterberg 2015: the expanded percentile interval)."""
    gaps, count = candidate - baseline, len(baseline)
    drawn = np.random.default_rng(SEED).integers(0, count, (RESAMPLES, count))
    means = (gaps * weights)[drawn].sum(1) / weights[drawn].sum(1)
    half = _student(count) * sqrt(count / max(count - 1, 1))
    tail = NormalDist().cdf(-half)
    low, high = np.quantile(means, [tail, 1 - tail])
    detectable = (half + Z_POWER) * float(means.std())
    return Interval(float((gaps * weights).sum() / weights.sum()), float(low), float(high), detectable,
                    f"paired items: bootstrap of {RESAMPLES} samples")


def _student(count: int) -> float:
    """Two-sided 5 % quantile of Student's t with count - 1 degrees of freedom: Fisher and Cornish's expansion, right to
    0.3 % from 5 items on."""
    free, z = max(count - 1, 1), Z
    return (z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3))


def _correlation(both: int, lost: int, won: int, neither: int) -> float:
    """Correlation in the table of two yes-or-no answers, continuity-corrected as Newcombe's method 10 has it."""
    edges = (both + lost) * (won + neither) * (both + won) * (lost + neither)
    if not edges:
        return 0.0
    count, cross = both + lost + won + neither, float(both * neither - lost * won)
    cross = max(cross - count / 2, 0.0) if cross > 0 else cross
    return cross / sqrt(edges)


def _mcnemar(differ: int, count: int) -> float:
    """Smallest difference of shares that McNemar's test shows (Connor 1987), where `differ` of `count` items are
    answered differently. No fewer can be than make the difference."""
    found = differ / count
    for _ in range(100):  # the formula has the result on both sides; it contracts
        share = max(differ / count, found, 1 / count)
        found = (Z * sqrt(share) + Z_POWER * sqrt(max(0.0, share - min(found, share) ** 2))) / sqrt(count)
    return min(1.0, found)
