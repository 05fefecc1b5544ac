"""Answers beside the list of layouts: trade-offs over loads, what other rates would change, the smallest cluster. Each
asks the same evaluation again, of other targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.schema import Change, Layout, Point, Size, Target

from .limits import excess, within
from .pareto import best_for, front, loads, steps, thinned
from .rank import Columns, limited, ranked
from .sensitivity import sensitivity
from .smallest import Found, smallest

Evaluate = Callable[[Target, Layouts], Columns]
"""Figures of layouts on a target, in their order."""
MOST_POINTS = 60
"""Of trade-offs that are kept."""
NEXT_BEST = 12
"""Layouts that are looked at again for other rates, beside those that no other beats."""
NEAR = 0.6
"""Of the first one's throughput: no change of a rate by a fifth makes up for more."""


def trade_offs(target: Target, found: Columns, evaluate: Evaluate) -> tuple[Point, ...]:
    """The layouts and loads that no other beats in throughput per device and a latency at once, from the least time per
    token on. `found`: the layouts at the workload's load; each is looked at with up to as many sequences as it has room
    for."""
    roomy = found.layouts.take(np.flatnonzero(found.max_sequences > 0))
    rising = loads(int(np.max(found.max_sequences, initial=0)), target.workload.concurrency)
    points = list(_points(target, evaluate, roomy, np.array(rising, dtype=np.int64))) if len(roomy) else []
    if not points:
        return ()
    latencies = {"tpot": np.array([point.tpot_s for point in points]),
                 "ttft": np.array([point.ttft_s for point in points])}
    best = best_for(np.array([point.tokens_per_s_per_device for point in points]), latencies)
    kept = [msgspec.structs.replace(point, best_for=names) for point, names in zip(points, best, strict=True) if names]
    kept.sort(key=lambda point: (point.tpot_s, point.ttft_s))
    return tuple(kept[row] for row in thinned(range(len(kept)), MOST_POINTS))


def _points(target: Target, evaluate: Evaluate, some: Layouts, rising: Value) -> Iterator[Point]:
    """Points that none beats: all loads are evaluated at once, with a column in the place of the workload's number.
    Requests follow one another there, whatever arrivals it states."""
    load = np.repeat(rising, len(some))
    workload = msgspec.structs.replace(target.workload, concurrency=load, arrival_rate=0.0)
    found = evaluate(msgspec.structs.replace(target, workload=workload),
                     some.take(np.tile(np.arange(len(some)), len(rising))))
    rows = np.flatnonzero(found.fits)
    rate = found.tokens_per_s[rows] / found.layouts.world_size[rows]
    kept = front(steps(found.tpot_s[rows]), -rate) | front(steps(found.ttft_s[rows]), -rate)
    keeps = within(target.limits, limited(found))
    for row, each in zip(rows[kept].tolist(), rate[kept].tolist(), strict=True):
        yield Point(layout=found.layouts[row], concurrency=int(load[row]), ttft_s=float(found.ttft_s[row]),
                    tpot_s=float(found.tpot_s[row]), tokens_per_s_per_device=each, best_for=(),
                    within=bool(keeps[row]))


def rate_changes(target: Target, found: Columns, evaluate: Evaluate, order: Value) -> tuple[Change, ...]:
    """What a fifth more or less of each rate does to the first of the layouts, and which is first then: of those that
    no other beats in throughput, time per token and time to the first, and of the next best. `order`: positions, best
    first."""
    order = order[np.asarray(found.fits, dtype=bool)[order]]
    if not len(order):
        return ()
    rate = found.tokens_per_s[order]
    best = front(-rate, found.tpot_s[order], found.ttft_s[order]) & (rate >= NEAR * rate[0])
    chosen = order[np.flatnonzero(best | (np.arange(len(order)) < NEXT_BEST))]
    some = found.layouts.take(chosen)

    def figures(changed: Target) -> dict[str, Value]:
        again, rows = (found, chosen) if changed is target else (evaluate(changed, some), np.arange(len(some)))
        return {name: column[rows] for name, column in {"tokens_per_s": again.tokens_per_s, **limited(again)}.items()}

    return sensitivity(target, list(some), figures)


def smallest_cluster(target: Target, search: Callable[[Target], Columns]) -> tuple[Size, ...]:
    """The smallest cluster that works. `search` gives the figures of all legal layouts of a target."""
    limits = target.limits

    def best(smaller: Target) -> Found | None:
        found = search(smaller)
        order = ranked(found, limits) if len(found.layouts) else np.zeros(0, dtype=np.int64)
        if not len(order) or not found.fits[order[0]]:
            return None
        row = int(order[0])
        return Found(found.layouts[row], float(excess(limits, limited(found))[row]), {
            "tpot_s": float(found.tpot_s[row]), "ttft_s": float(found.ttft_s[row]),
            "tokens_per_s": float(found.tokens_per_s[row])})

    return smallest(target, best)


def position(layouts: Layouts, layout: Layout) -> int | None:
    """Where the layout is; None: it is not among them."""
    alike = np.ones(len(layouts), dtype=bool)
    for name in ("tp", "pp", "ep", "dp", "cp", "attention_tp"):
        alike &= getattr(layouts, name) == getattr(layout, name)
    return int(np.flatnonzero(alike)[0]) if alike.any() else None
