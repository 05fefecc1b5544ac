"""Which layers each stage of a pipeline holds: even by count, or so that the fullest or the slowest stage is as light
as it can be, with the embedding in the first and the output head in the last.

A layer's bytes and seconds are those on one rank while a micro-batch is decoded, in a usual layout of a stage's
devices. A split is only looked at where it makes the fullest or the slowest stage lighter than the even one does by
more than `WORTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement import split_layers
from dayzero.placement.many import Layouts
from dayzero.placement.memory import device_bytes
from dayzero.schema import Layout, ModelSpec, OpGraph, Target

from .evaluate import Evaluated, evaluate, stage_seconds
from .times.stage import Split, rows

WORTH = 0.02
"""Share of the heaviest stage."""
GAIN = 0.001
"""Share of the throughput from which another split is taken."""
CAUSES = ("weights", "kv_cache", "state", "logits")
"""Of a stage's memory, those that its layers decide."""


class Splits:
    """The splits of a model's layers that are worth a look on a target, whatever its load."""

    def __init__(self, model: ModelSpec, target: Target) -> None:
        self.model, self.target = model, target
        self.known: dict[int, list[Split]] = {}

    def improved(self, found: Evaluated, target: Target, graph: OpGraph | None) -> Evaluated:
        """The figures that each layout has with the best of its splits, from those that it has with the even one.
        `target`: the same cluster, or another one of such devices, with any load."""
        self._look(sorted({int(depth) for depth in found.layouts.pp} - self.known.keys()))
        for number in range(1, 1 + len(CRITERIA)):
            several = np.array([len(self.known[int(depth)]) > number for depth in found.layouts.pp], dtype=bool)
            rows = np.flatnonzero(several)
            if len(rows):
                other = evaluate(self.model, _of_rows(target, rows), found.layouts.take(rows), graph=graph,
                                 split=partial(self._numbered, number))
                other.cut[:] = number
                found = _patched(found, rows, other)
        return found

    def _numbered(self, number: int, _: ModelSpec, depth: int) -> Split:
        return self.known[depth][number]

    def split(self, found: Evaluated, row: int) -> Split:
        """The layers of each stage of a layout."""
        return self.known[int(found.layouts.pp[row])][int(found.cut[row])]

    def _look(self, depths: Sequence[int]) -> None:
        """For each number of stages: the even split first. The reference runtime, which runs on measured devices, has
        no other."""
        self.known |= {depth: [split_layers(self.model, depth)] for depth in depths}
        deep = [depth for depth in depths if 1 < depth < len(self.model.layers)]
        if self.target.cluster.device.measured or not deep:
            return
        each = _each_layer(self.model, self.target, deep)
        for criterion in CRITERIA:
            for depth, weights in zip(deep, each[criterion], strict=True):
                even, other = self.known[depth][0], balanced(weights, depth)
                lighter = heaviest(weights, other) < (1 - WORTH) * heaviest(weights, even)
                self.known[depth] += [other] if lighter and other not in self.known[depth] else []


CRITERIA = ("bytes", "seconds")
"""By what stages are made alike."""


def _each_layer(model: ModelSpec, target: Target, depths: Sequence[int]) -> dict[str, Value]:
    """Bytes and seconds of each layer, shape [depths, layers]: every layer as a stage of its own."""
    count = len(model.layers)
    layouts = Layouts.of(_usual(model, target, depth) for depth in depths)
    held = rows(model, layouts, lambda model, pp: tuple(pairwise(range(count + 1))))
    sizes = device_bytes(model, held.layouts, held.layers, target)
    grows = np.broadcast_to(sum(sizes[cause] for cause in CAUSES), len(held.owner))
    which = held.begins[:, None] + held.pipelines[count]
    return {"bytes": grows[which], "seconds": stage_seconds(model, target, layouts, held, np.array(depths))[which]}


def _usual(model: ModelSpec, target: Target, depth: int) -> Layout:
    """All devices of a stage of that many: tensor parallel inside nodes, experts over all of them. Every layer is a
    stage."""
    ranks, node = max(1, target.cluster.world_size // depth), target.cluster.devices_per_node
    tp = gcd(ranks, node)
    return Layout(tp=tp, dp=ranks // tp, ep=ranks if model.mixes_experts else 1, pp=len(model.layers))


def _of_rows(target: Target, rows: Value) -> Target:
    """The target for some of its layouts, each of which may have a concurrency of its own."""
    workload = target.workload
    if not np.ndim(workload.concurrency):
        return target
    own = msgspec.structs.replace(workload, concurrency=np.asarray(workload.concurrency)[rows])
    return msgspec.structs.replace(target, workload=own)


def _patched(found: Evaluated, rows: Value, other: Evaluated) -> Evaluated:
    """The figures with those of `rows` that are better in `other`: that fit where the others do not, are faster, or
    where neither fits lack less."""
    fits, less = found.fits[rows], other.need_bytes < found.need_bytes[rows]
    faster = other.tokens_per_s > (1 + GAIN) * found.tokens_per_s[rows]
    better = np.where(other.fits == fits, np.where(fits, faster, less), other.fits)

    def column(old: Any, new: Any) -> Any:
        if isinstance(old, dict):
            return {key: column(value, new[key]) for key, value in old.items()}
        made = np.array(old)
        made[..., rows[better]] = new[..., better]
        return made

    return replace(found, **{name: column(getattr(found, name), getattr(other, name))
                             for name in (field.name for field in fields(found)) if name != "layouts"})


def heaviest(weights: Value, split: Split) -> float:
    """What the heaviest stage weighs."""
    return max(float(weights[start:stop].sum()) for start, stop in split)


def balanced(weights: Value, stages: int) -> Split:
    """The split into so many stages, each of at least one layer, of which the heaviest weighs least: the smallest limit
    to which stages can be filled one after another, found by bisection."""
    least, most = float(weights.max()), float(weights.sum())
    for _ in range(50):
        limit = (least + most) / 2
        if _filled(weights, stages, limit) is None:
            least = limit
        else:
            most = limit
    return tuple(pairwise(accumulate(_filled(weights, stages, most) or (), initial=0)))


def _filled(weights: Value, stages: int, limit: float) -> list[int] | None:
    """Layers of each stage, filled one after another up to a limit; None: they do not hold all."""
    sizes, left, within = [0], 0.0, limit * (1 + 1e-12)
    for index, weight in enumerate(weights.tolist()):
        remaining = len(weights) - index
        full = left + weight > within or remaining == stages - len(sizes)
        if sizes[-1] and full:
            sizes.append(0)
            left = 0.0
        sizes[-1] += 1
        left += weight
        if len(sizes) > stages or left > within:
            return None
    return sizes if len(sizes) == stages else None
