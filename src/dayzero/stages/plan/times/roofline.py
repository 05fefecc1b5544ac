"""Seconds of a step from work, traffic and overhead, stage by stage, at one share of the stated rates for all.

time of an operator kind = max(flops / matrix rate, bytes / memory bandwidth); kinds, communication and the overhead of
operators add up, nothing overlaps. Of many layouts at once: arrays of shape [3, rows] with a row for each kind of stage
of each, or [3, layouts] for all stages together; the 3 are fastest, expected and slowest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.schema import ModelSpec, OpGraph, Target

from .collectives import exposed
from .hops import Hops
from .speeds import EXPECTED, UNKNOWN_LAUNCH, Speeds
from .stage import Rows
from .traffic import Sending, sends
from .work import Step, Work, stage_work

COMMUNICATION = "communication"
OVERHEAD = "operator overhead"
DRAFT = "draft"


@dataclass
class Cost:
    """Time of one step."""

    causes: dict[str, Value] = field(default_factory=dict)
    """Seconds by kind of operator, communication and overhead."""
    bounds: dict[str, Value] = field(default_factory=dict)
    """Expected seconds by the resource that bounds them."""

    @property
    def total(self) -> Value:
        """Seconds in all."""
        return sum(self.causes.values())

    def add(self, cause: str, seconds: Value, *bounds: tuple[str, Value]) -> None:
        """Count more seconds. `bounds`: resources, and where each of them is what bounds them."""
        self.causes[cause] = self.causes.get(cause, 0.0) + seconds
        for bound, here in bounds:
            self.bounds[bound] = self.bounds.get(bound, 0.0) + np.where(here, seconds[EXPECTED], 0.0)


class Roofline:
    """Costs of steps of one model on one target, for layouts with the same stages."""

    def __init__(self, model: ModelSpec, target: Target, speeds: Speeds, graph: OpGraph | None, layouts: Layouts,
                 held: Rows, links: Hops) -> None:
        self.model, self.target, self.speeds, self.graph = model, target, speeds, graph
        self.layouts, self.held, self.links = layouts, held, links
        self.draft: Roofline | None = None
        self.matrix, self.memory, self.link, self.waiting = (
            np.reshape(factor, (3, 1)) for factor in (speeds.matrix, speeds.memory, speeds.link, speeds.waiting))

    def stages(self, step: Step) -> Cost:
        """Every kind of stage, with what it sends on; the last one with the logits."""
        cost, cluster, held = Cost(), self.target.cluster, self.held
        layouts, shape = held.layouts, (3, len(held.owner))
        step = msgspec.structs.replace(step, sequences=held.spread(step.sequences))
        self.compute(cost, stage_work(self.model, layouts, self.target, held.stage, step))
        seconds = np.zeros(shape)
        sending = Sending(self.model, layouts, cluster, counted=False)
        for sent in sends(sending, held.stage, step, cluster.device.measured):
            taken = sent.seconds
            seconds = seconds + taken.waiting * self.waiting + (taken.sending + taken.reached) / self.link
        hop = self.links.worst
        seconds = seconds + (step.passes * hop.latency * self.waiting
                             + hop.bytes(self.model, layouts, step) * (hop.pace + hop.reached) / self.link)
        seconds = exposed(seconds, sum(cost.causes.values()), cluster.overlap)
        cost.add(COMMUNICATION, seconds, ("links", True))
        calls = overhead(self.graph, self.target, self.speeds, step)
        if calls is not None:
            part = held.stage.layers / len(self.model.layers)
            cost.add(OVERHEAD, np.broadcast_to(np.reshape(calls, (-1, 1)) * part, shape),
                     ("operator overhead", True))
        return Cost({cause: np.broadcast_to(value, shape) for cause, value in cost.causes.items()},
                    {bound: np.broadcast_to(value, shape[1:]) for bound, value in cost.bounds.items()})

    def compute(self, cost: Cost, work: Iterable[Work]) -> None:
        """Add the operators' time: the slower of arithmetic and memory, for each of them; memory alone where the device
        states no rate."""
        device = self.target.cluster.device
        for item in work:
            rated = device.computes_in(item.scheme)
            arithmetic = item.flops / (device.rate(rated) * self.matrix) if rated else np.zeros((3, 1))
            moving = item.bytes / (device.memory_bandwidth * self.memory)
            slower = arithmetic[EXPECTED] > moving[EXPECTED]
            cost.add(item.kind, np.maximum(arithmetic, moving), ("matrix rate", slower), ("memory bandwidth", ~slower))

    def one_by_one(self, stages: Cost, step: Step) -> Cost:
        """A pass through all stages, one after another."""
        held, worst, every = self.held, self.links.worst, self.links.all
        made = Cost({cause: held.total(seconds) for cause, seconds in stages.causes.items()},
                    {bound: held.total(seconds) for bound, seconds in stages.bounds.items()})
        latency, pace, reached = (getattr(every, figure) - held.total(getattr(worst, figure))
                                  for figure in ("latency", "pace", "reached"))
        made.add(COMMUNICATION, step.passes * latency * self.waiting
                 + every.bytes(self.model, self.layouts, step) * (pace + reached) / self.link, ("links", True))
        return made

    def pipeline(self, step: Step, micro_batches: Value) -> Cost:
        """Time between two tokens of a sequence, when `step` is that of one of `micro_batches` micro-batches: a token
        passes all stages, and each stage handles all micro-batches before it sees the sequence again."""
        stages = self.stages(step)
        every, slowest = self.one_by_one(stages, step), self.held.largest(stages.total[EXPECTED])
        busiest = Cost({cause: seconds[:, slowest] * micro_batches for cause, seconds in stages.causes.items()},
                       {bound: seconds[slowest] * micro_batches for bound, seconds in stages.bounds.items()})
        return chosen(busiest.total[EXPECTED] > every.total[EXPECTED], busiest, every)

    def each_token(self, passed: Cost, step: Step, parts: Value = 1) -> Cost:
        """The cost of a token, from that of a pass: with what proposed tokens for it, of each of `parts` micro-batches,
        and divided by those that it gives."""
        accepted, made = self.target.workload.acceptance_length, passed
        if self.draft:
            proposed = msgspec.structs.replace(step, tokens=1, scored=1)
            drafting = self.draft.one_by_one(self.draft.stages(proposed), proposed)
            times = self.target.workload.draft_tokens * parts
            made = Cost(dict(passed.causes) | {DRAFT: times * drafting.total}, dict(passed.bounds))
            for bound, seconds in drafting.bounds.items():
                made.bounds[bound] = made.bounds.get(bound, 0.0) + times * seconds
        return made if accepted == 1 else Cost({cause: seconds / accepted for cause, seconds in made.causes.items()},
                                               {bound: seconds / accepted for bound, seconds in made.bounds.items()})


def chosen(condition: Value, first: Cost, second: Cost) -> Cost:
    """The first cost where the condition holds."""
    return Cost({cause: np.where(condition, first.causes[cause], second.causes[cause]) for cause in first.causes},
                {bound: np.where(condition, first.bounds[bound], second.bounds[bound]) for bound in first.bounds})


def counted(graph: OpGraph | None, phase: str) -> float | None:
    """Operator calls of one pass through all layers; None: not traced. Where no code ran, operations do not tell how
    many calls they take."""
    if graph is None or not (graph.operators or not graph.operations) or phase not in graph.phases:
        return None
    return float(graph.phases[phase].operators)


def overhead(graph: OpGraph | None, target: Target, speeds: Speeds, step: Step) -> Value | None:
    """What operators cost whatever their size, in a step through all layers. Where the device's overhead is not known,
    only the slow end counts any. None: nothing was traced."""
    calls, each = counted(graph, step.phase), target.cluster.device.op_overhead
    if calls is None or graph is None:
        return None
    if each is not None:
        return calls * each * step.passes * speeds.waiting
    launches = Counter[str]()
    for call in graph.operators:
        launches[call.phase] += call.count if call.bytes else 0  # a view launches nothing
    return launches[step.phase] * step.passes * np.array(UNKNOWN_LAUNCH)
