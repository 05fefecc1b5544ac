"""From seconds of messages of several sizes to a latency and a bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from statistics import median

import numpy as np

from dayzero.schema import Reached
from dayzero.schema.topology import Timing

_LEAST_LATENCY = 1e-9
"""Seconds: where the line would start below zero."""


def messages(collective: str, ranks: int) -> float:
    """Messages after each other in a small one, see `Reached`."""
    if collective == "point_to_point":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * log2(ranks)


def sent(collective: str, ranks: int) -> float:
    """Bytes that each device sends in a large one, for each byte of its size."""
    if collective == "point_to_point":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(seconds of nothing, seconds of a byte): the line with the least squares of relative errors, neither negative."""
    size, taken = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    columns = np.stack([1 / taken, size / taken], axis=1)
    (start, slope), *_ = np.linalg.lstsq(columns, np.ones(len(taken)), rcond=None)
    if slope <= 0:  # only noise grows with the size
        return float(np.mean(taken)), 0.0
    if start <= 0:
        return 0.0, float(np.sum(size / taken) / np.sum((size / taken) ** 2))
    return float(start), float(slope)


def fitted(collective: str, ranks: int, groups: int, rounds: dict[int, list[float]]) -> tuple[Timing, Reached]:
    """(what was timed, what that says of the level) of a collective's seconds in every round, by size."""
    sizes = tuple(sorted(rounds))
    seconds = tuple(median(rounds[size]) for size in sizes)
    start, slope = line(sizes, seconds)
    slope = max(slope, 1e-18)  # an exabyte a second: the largest message took no longer than the smallest
    lines = start + slope * np.asarray(sizes, dtype=float)
    reached = Reached(latency=max(start / messages(collective, ranks), _LEAST_LATENCY),
                      bandwidth=sent(collective, ranks) / slope)
    return Timing(
        collective=collective, ranks=ranks, groups=groups, sizes=sizes, seconds=seconds,
        spread=tuple((max(rounds[size]) - min(rounds[size])) / median(rounds[size]) for size in sizes),
        rounds=min(len(values) for values in rounds.values()),
        residual=float(np.sqrt(np.mean((lines / np.asarray(seconds) - 1) ** 2)))), reached
