"""Seconds of a step from work, traffic and overhead: the roofline, stage by stage, then the pipeline.

time of an operator kind = max(flops / matrix rate, bytes / memory bandwidth), at one share of each rate or, where only
the datasheet is known, at those of its class (`timing`); kinds, communication and the overhead of operators add up,
nothing overlaps. All times are triples (fastest, expected, slowest).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from dayzero.schema import Device, Layout, ModelSpec, OpGraph, Target

from .speeds import EXPECTED, UNKNOWN_LAUNCH, Shares, Speeds, Triple
from .terms import arithmetic, classified, expert_layers, operators, rows_of_expert
from .timing import MICRO, class_seconds, decode_call, prefill_call
from .traffic import Traffic
from .work import Step, Work, stage_work

COMMUNICATION = "communication"
OVERHEAD = "operator overhead"
Split = tuple[tuple[int, int], ...]
Signature = tuple[object, ...]
T = TypeVar("T")


@dataclass
class Cost:
    """Time of one stage or of a whole step."""

    causes: dict[str, Triple] = field(default_factory=dict)
    """Seconds by kind of operator, communication and overhead."""
    bounds: dict[str, float] = field(default_factory=dict)
    """Expected seconds by the resource that bounds them."""

    @property
    def total(self) -> Triple:
        """Seconds in all."""
        total: Triple = np.sum(list(self.causes.values()), axis=0)
        return total

    def add(self, cause: str, seconds: Triple, bound: str) -> None:
        """Count more seconds."""
        self.causes[cause] = self.causes.get(cause, 0) + seconds
        self.bounds[bound] = self.bounds.get(bound, 0.0) + float(seconds[EXPECTED])

    def scaled(self, factor: float) -> Cost:
        """The cost of that many equal steps."""
        return Cost({cause: seconds * factor for cause, seconds in self.causes.items()},
                    {bound: seconds * factor for bound, seconds in self.bounds.items()})

    @classmethod
    def sum(cls, costs: Iterable[Cost]) -> Cost:
        """One after another."""
        total = cls()
        for cost in costs:
            for cause, seconds in cost.causes.items():
                total.causes[cause] = total.causes.get(cause, 0) + seconds
            for bound, value in cost.bounds.items():
                total.bounds[bound] = total.bounds.get(bound, 0.0) + value
        return total


def roofline(cost: Cost, work: Iterable[Work], device: Device, speeds: Speeds) -> None:
    """Add the operators' time: the slower of arithmetic and memory, for each of them; memory alone where the device
    states no rate (`Planner` raises if that is the model's own dtype, and names the others in its notes)."""
    for item in work:
        rated = device.computes_in(item.scheme)
        arithmetic = item.flops / (device.rate(rated) * speeds.matrix) if rated else np.zeros(3)
        moving = item.bytes / (device.memory_bandwidth * speeds.memory)
        slower = arithmetic[EXPECTED] > moving[EXPECTED]
        cost.add(item.kind, np.maximum(arithmetic, moving), "matrix rate" if slower else "memory bandwidth")


def by_class(cost: Cost, work: Iterable[tuple[str, Work]], device: Device, speeds: Speeds, rows: Mapping[str, float],
             prefill: bool, whole_experts: bool, factor: float) -> None:
    """Add the operators' time at the shares that their classes reach, times `factor`. `rows`: that meet one matrix, by
    class."""
    if speeds.shares is None:
        raise ValueError("the shares of the device are not known")
    generation, common = speeds.shares.generation, speeds.shares.common
    for kind, item in work:
        rate, moved = arithmetic(kind, item, device, common), item.bytes / device.memory_bandwidth
        both, computing, moving = (class_seconds(kind, *part, generation, rows=rows.get(kind, 1.0), prefill=prefill)
                                   for part in ((rate, moved), (rate, 0.0), (0.0, moved)))
        uneven = common.imbalance if kind == "expert" and whole_experts else 1.0
        cost.add(item.kind, both * factor * uneven * speeds.waiting,
                 "matrix rate" if computing > moving else "memory bandwidth")


class Costs:
    """Costs of one model on one target; stages that are alike are computed once."""

    def __init__(self, model: ModelSpec, target: Target, speeds: Speeds, graph: OpGraph | None) -> None:
        self.model, self.target, self.speeds = model, target, speeds
        counted = graph is not None and (graph.operators or not graph.operations)
        self.graph = graph if counted else None  # where no code ran, operations do not tell how many calls they take
        self._signatures: dict[tuple[int, int], Signature] = {}
        self._launches: Counter[str] = Counter()
        for call in graph.operators if graph else ():
            self._launches[call.phase] += call.count if call.bytes else 0  # a view launches nothing

    def signature(self, start: int, stop: int) -> Signature:
        """What two stages have in common when they hold and cost the same: whether they are first or last, how many
        layers of each kind they hold, and how many of each weight family."""
        if (start, stop) not in self._signatures:
            kinds = Counter((layer.attention, layer.feed_forward) for layer in self.model.layers[start:stop])
            held = (bisect_left(family.layers, stop) - bisect_left(family.layers, start)
                    for family in self.model.families)
            ends = start == 0, stop == len(self.model.layers)
            self._signatures[start, stop] = (*ends, tuple(sorted(kinds.items())), tuple(held))
        return self._signatures[start, stop]

    def each_stage(self, split: Split, compute: Callable[[int], T]) -> list[T]:
        """`compute(stage)` for every stage, calling it once for stages that are alike."""
        known: dict[Signature, T] = {}
        results = []
        for stage, (start, stop) in enumerate(split):
            key = self.signature(start, stop)
            if key not in known:
                known[key] = compute(stage)
            results.append(known[key])
        return results

    def operators(self, phase: str, layers: range) -> float | None:
        """Operator calls of one pass of a stage: its share, by layers, of those that were traced. None: not traced."""
        traced = self.graph.phases.get(phase) if self.graph else None
        return traced.operators * len(layers) / len(self.model.layers) if traced else None

    def overhead_known(self) -> bool:
        """Whether the time that an operator costs whatever its size takes part in the figures."""
        if self.speeds.shares:
            return True
        return self.target.cluster.device.op_overhead is not None and self.operators("decode", range(1)) is not None

    def _overhead(self, layers: range, step: Step) -> Triple | None:
        """What operators cost whatever their size, in a step. Where the device's overhead is not known, only the slow
        end counts any. None: nothing was traced."""
        if self.speeds.shares:
            return self._called(self.speeds.shares, layers, step)
        calls, each = self.operators(step.phase, layers), self.target.cluster.device.op_overhead
        if calls is None:
            return None
        if each is not None:
            return np.asarray(calls * each * step.passes * self.speeds.waiting)
        launches = self._launches[step.phase] * len(layers) / len(self.model.layers)
        return launches * step.passes * np.array(UNKNOWN_LAUNCH)

    def _called(self, shares: Shares, layers: range, step: Step) -> Triple:
        """What products with weights cost whatever their size, and in the last stage what the engine adds to a step."""
        if step.phase == "prefill":
            micro = operators(self.model, layers) * prefill_call(shares.generation, shares.engine) * step.passes
            micro *= self._factor(step)
        else:
            micro = operators(self.model, layers) * decode_call(shares.generation, shares.engine)
            micro += expert_layers(self.model, layers) * shares.generation.expert_call
            if layers.stop == len(self.model.layers):
                micro += shares.engine.step + shares.engine.sequence * step.sequences
        return np.asarray(micro * MICRO * self.speeds.waiting)

    def _factor(self, step: Step) -> float:
        """What the engine makes of the time of a pass."""
        return self.speeds.shares.engine.prefill_factor if self.speeds.shares and step.phase == "prefill" else 1.0

    def _rows(self, layout: Layout, step: Step) -> dict[str, float]:
        """Rows that meet one matrix, by class."""
        return {"linear": step.rows, "expert": rows_of_expert(self.model, layout, step)}

    def _stage(self, layout: Layout, layers: range, step: Step) -> Cost:
        """One stage without what it sends to the next."""
        cost, cluster = Cost(), self.target.cluster
        if self.speeds.shares:
            work = classified(self.model, layout, self.target, layers, step)
            by_class(cost, work, cluster.device, self.speeds, self._rows(layout, step), step.phase == "prefill",
                     whole_experts=layout.ep > 1, factor=self._factor(step))
        else:
            roofline(cost, stage_work(self.model, layout, self.target, layers, step), cluster.device, self.speeds)
        traffic = Traffic(self.model, layout, cluster, self.speeds)
        sending = traffic.tensor_parallel(layers, step) + traffic.expert_parallel(layers, step)
        cost.add(COMMUNICATION, sending * self._factor(step), "links")
        overhead = self._overhead(layers, step)
        if overhead is not None:
            cost.add(OVERHEAD, overhead, "operator overhead")
        return cost

    def stages(self, layout: Layout, split: Split, step: Step) -> list[Cost]:
        """Every stage with what it sends on; the last one with the logits. A pass through all is their sum."""
        bare = self.each_stage(split, lambda stage: self._stage(layout, range(*split[stage]), step))
        cluster, costs = self.target.cluster, []
        traffic = Traffic(self.model, layout, cluster, self.speeds)
        for stage, cost in enumerate(bare):
            sent = Cost()
            if stage + 1 < layout.pp:
                sent.add(COMMUNICATION, traffic.to_next_stage(stage, step), "links")
            elif layout.tp * layout.pp > 1:
                sent.add(COMMUNICATION, traffic.logits(step, broadcast=cluster.device.measured), "links")
            costs.append(Cost.sum((cost, sent)))
        return costs


def pipeline(stages: list[Cost], micro_batches: int) -> Cost:
    """Time between two tokens of a sequence, when each stage's cost is that of one of `micro_batches` micro-batches: a
    token passes all stages, and each stage handles all micro-batches before it sees the sequence again."""
    one_by_one = Cost.sum(stages)
    slowest = max(stages, key=lambda cost: float(cost.total[EXPECTED])).scaled(micro_batches)
    return slowest if slowest.total[EXPECTED] > one_by_one.total[EXPECTED] else one_by_one
