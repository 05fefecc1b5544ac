"""One legal layout, costed: memory of every stage, how many sequences fit, and the three estimates."""

from __future__ import annotations

from math import ceil

from dayzero.placement.cache import allocated_sequence, allocation_of
from dayzero.placement.memory import device_bytes, sequences_per_replica, value_bytes
from dayzero.schema import Candidate, Estimate, Layout, ModelSpec, OpGraph, Target

from .cost import Cost, Costs, Split, pipeline
from .speeds import EXPECTED, Triple, speeds
from .traffic import LOGIT_ITEM
from .work import decode_step, prefill_step

FASTEST, SLOWEST = 0, 2


class Planner:
    """Makes candidates for one model on one target. Raises TargetError when the device states no rate for the dtype
    that the model computes in."""

    def __init__(self, model: ModelSpec, target: Target, graph: OpGraph | None) -> None:
        self.model, self.target = model, target
        target.cluster.device.rate(model.dtype)
        self.speeds = speeds(target.cluster.device, target.engine.name)
        self.costs = Costs(model, target, self.speeds, graph)

    def candidate(self, layout: Layout, split: Split) -> Candidate:
        """The candidate, without the explanation, which needs the others. `split`: layers of each stage."""
        usable = self.target.cluster.usable_bytes
        stages = self.costs.each_stage(split, lambda stage: device_bytes(self.model, layout, range(*split[stage]), self.target))
        fullest = max(stages, key=lambda causes: sum(causes.values()))
        prefill = Cost.sum(self.costs.stages(layout, split, prefill_step(self.target)))
        decode, low, high = self._decode(layout, split)
        ttft, tpot, served = prefill.total, float(decode.total[EXPECTED]), self.target.workload.concurrency
        return Candidate(
            layout=layout, fits=sum(fullest.values()) <= usable, stages=split, bytes_per_device=fullest,
            usable_bytes=usable, bytes_per_stage=tuple(stages), max_sequences=self._room(layout, split, stages),
            ttft_s=self._estimate(float(ttft[EXPECTED]), float(ttft[FASTEST]), float(ttft[SLOWEST]), "s"),
            tpot_s=self._estimate(tpot, low, high, "s"),
            tokens_per_s=self._estimate(served / tpot, served / high, served / low, "tokens/s"),
            decode_seconds=expected(decode.causes), prefill_seconds=expected(prefill.causes),
            limits=(bound("decode", decode), bound("prefill", prefill)), explanation="",
        )  # fmt: skip

    def _decode(self, layout: Layout, split: Split) -> tuple[Cost, float, float]:
        """(cost of a token, fastest, slowest). Fastest: micro-batches keep all stages busy; slowest: one stage works at
        a time; the value follows `interleaves`."""
        sequences = sequences_per_replica(self.target.workload, layout)
        serial = Cost.sum(self.costs.stages(layout, split, decode_step(self.target, sequences)))
        micro_batches = min(layout.pp, sequences)
        busy = serial
        if micro_batches > 1:
            step = decode_step(self.target, sequences / micro_batches)
            busy = pipeline(self.costs.stages(layout, split, step), micro_batches)
        value = busy if self.interleaves(layout) else serial
        fastest = min(float(busy.total[FASTEST]), float(serial.total[FASTEST]))
        return value, fastest, max(float(busy.total[SLOWEST]), float(serial.total[SLOWEST]))

    def interleaves(self, layout: Layout) -> bool:
        """Whether the value takes micro-batches in flight: on a device known from its datasheet, where a serving
        engine will run, with a sequence for each stage. A measured device runs the reference runtime, one stage at a
        time."""
        enough = sequences_per_replica(self.target.workload, layout) >= layout.pp > 1
        return enough and not self.target.cluster.device.measured

    def _room(self, layout: Layout, split: Split, stages: list[dict[str, int]]) -> int:
        """Sequences of full length that fit, as the engine allocates for them, over all replicas: what is left of the
        fullest stage beside everything that does not grow with them. Where groups of ranks within tp have attention of
        their own, each of them holds one of as many sequences as there are groups."""
        workload, groups, rooms = self.target.workload, layout.tp // layout.attention_degree, []
        rules = allocation_of(self.target.engine)
        for stage, (start, stop) in enumerate(split):
            each = sum(allocated_sequence(self.model, layout, range(start, stop), workload, rules))
            if stop == len(self.model.layers):
                each += groups * self.model.vocab_size * (value_bytes(self.model) + LOGIT_ITEM)
            growing = ("kv_cache", "state", "logits")
            fixed = sum(size for cause, size in stages[stage].items() if cause not in growing)
            free = max(0, self.target.cluster.usable_bytes - fixed)
            if each or not free:  # a stage that has room and keeps nothing of a sequence limits nothing
                rooms.append(free // each if each else 0)
        return min(rooms) * groups * layout.dp

    def _estimate(self, value: float, low: float, high: float, unit: str) -> Estimate:
        return Estimate(value=value, low=min(low, value), high=max(high, value), unit=unit, source=self.speeds.source)


def expected(causes: dict[str, Triple]) -> dict[str, float]:
    """Expected seconds by cause, largest first."""
    values = {cause: float(seconds[EXPECTED]) for cause, seconds in causes.items() if seconds[EXPECTED] > 0}
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def bound(phase: str, cost: Cost) -> str:
    """`decode: memory bandwidth 81 %, links 19 %`: what takes at least a tenth of the time."""
    total = sum(cost.bounds.values())
    shares = sorted(((seconds / total, resource) for resource, seconds in cost.bounds.items()), reverse=True)
    named = [f"{resource} {ceil(100 * share - 0.5)} %" for share, resource in shares if share >= 0.1]
    return f"{phase}: {', '.join(named)}"
