"""How much of what is not computing lay under computing: intervals of time, as sorted columns of nanoseconds.

A span counts as the time that its lane (a thread or a stream) spent on it. Computing is the union of the compute spans
of all lanes, each without what else was going on on its own lane: a thread that waits for a load does not compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dayzero.schema.record import Overlap

CATEGORIES = ("compute", "load", "offload", "collective", "wait")
"""What a span may be."""
HIDEABLE = ("load", "offload", "collective")
"""What can go on while a rank computes."""

Intervals = np.ndarray[Any, np.dtype[np.int64]]
"""[n, 2]: starts and ends; sorted and apart from each other when a function here made them."""


def union(spans: Sequence[Intervals]) -> Intervals:
    """All that lies in at least one interval."""
    every = np.concatenate([np.zeros((0, 2), np.int64), *spans])
    every = every[np.argsort(every[:, 0], kind="stable")]
    if not len(every):
        return every
    reached = np.maximum.accumulate(every[:, 1])
    first = np.concatenate([[True], every[1:, 0] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([every[first, 0], reached[last]], axis=1)


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """All that lies in both unions."""
    return _where(one, other, 3)


def without(one: Intervals, other: Intervals) -> Intervals:
    """All of the first union that is not in the second."""
    return _where(one, other, 1)


def length(spans: Intervals) -> int:
    """Nanoseconds of a union."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def _where(one: Intervals, other: Intervals, wanted: int) -> Intervals:
    """The times at which the sum of 1 in the first union and 2 in the second is as wanted."""
    times = np.concatenate([one[:, 0], one[:, 1], other[:, 0], other[:, 1]])
    steps = np.repeat([1, -1, 2, -2], [len(one), len(one), len(other), len(other)])
    order = np.argsort(times, kind="stable")
    times, covered = times[order], np.cumsum(steps[order])
    found = (covered[:-1] == wanted) & (times[1:] > times[:-1])
    return union([np.stack([times[:-1][found], times[1:][found]], axis=1)])


def shares(spans: Mapping[tuple[str, str], Intervals], nbytes: Mapping[str, int]) -> tuple[Overlap, ...]:
    """Of one rank: `spans` by (category, lane), `nbytes` by category. Categories that did not occur are left out."""
    computing = union([
        without(union([found]), union([other for (kind, there), other in spans.items()
                                       if there == lane and kind != "compute"]))
        for (category, lane), found in spans.items() if category == "compute"])  # fmt: skip
    made = []
    for category in HIDEABLE:
        busy = union([found for (kind, _), found in spans.items() if kind == category])
        if len(busy):
            made.append(Overlap(category=category, seconds=length(busy) / 1e9, nbytes=nbytes.get(category, 0),
                                hidden_s=length(intersection(busy, computing)) / 1e9))
    return tuple(made)


def together(ranks: Sequence[Sequence[Overlap]]) -> tuple[Overlap, ...]:
    """The sums over ranks."""
    made = []
    for category in HIDEABLE:
        found = [one for rank in ranks for one in rank if one.category == category]
        if found:
            made.append(Overlap(category=category, seconds=sum(one.seconds for one in found),
                                hidden_s=sum(one.hidden_s for one in found), nbytes=sum(one.nbytes for one in found)))
    return tuple(made)
