"""How layers are dealt out to the stages of a pipeline: evenly by count, or such that the slowest stage is as fast as
can be and every stage has room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Chunks = tuple[tuple[int, int], ...]
"""(first layer, one past the last) of each chunk of layers, in order."""
ROUNDS = 24
"""Halvings of the range that the slowest stage's time is looked for in."""
Room = Callable[[int, int], int]
"""(stage, first layer) -> one past the last layer that the stage has room for."""


def even(layers: int, pp: int) -> Chunks:
    """Equal stages. Raises ZeroDivisionError for none; callers see to it that pp divides the layers."""
    size = layers // pp
    return tuple((stage * size, (stage + 1) * size) for stage in range(pp))


def split(costed: Sequence[float], stages: int, first: float, last: float, room: Room | None = None) -> Chunks:
    """Stages such that the slowest one is as fast as can be, with what the first and the last do beside layers; later
    stages get fewer layers where it is the same. With `room` no stage takes more layers than it has room for; empty
    where that is not possible."""
    sums = [0.0, *accumulate(costed)]
    low, high = max(costed), sums[-1] + first + last
    best = _filled(sums, stages, first, last, high, room)
    if best is None:
        return ()
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        found = _filled(sums, stages, first, last, middle, room)
        if found:
            best, high = found, middle
        else:
            low = middle
    return best


def _filled(sums: Sequence[float], stages: int, first: float, last: float, most: float, room: Room | None
            ) -> Chunks | None:
    """Stages filled one after another up to `most`; each keeps a layer. None: the layers do not fit."""
    bounds, start, count, limit = [], 0, len(sums) - 1, most * (1 + 1e-9)
    for stage in range(stages):
        beside = (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        stop = bisect_right(sums, sums[start] + limit - beside) - 1
        stop = min(max(stop, start + 1), count - (stages - stage - 1))
        if room:
            stop = min(stop, room(stage, start))
        if stop <= start or (sums[stop] - sums[start] + beside > limit and stages > 1):
            return None
        bounds.append((start, stop))
        start = stop
    return tuple(bounds) if start == count else None
