"""The search for training: every layout, and for each the micro-batch, schedule, recomputation and sharing of states
that make the fastest step that fits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from dayzero.data.training import Generation, generation
from dayzero.errors import LayoutError, TargetError
from dayzero.placement import blockers, layouts
from dayzero.progress import SILENT, Progress
from dayzero.schema import Cluster, Estimate, Layout, Link, ModelSpec, Plan, Rejected, Target, Trained

from .explain import explained, training_notes
from .flops import token_flops
from .memory import peak_bytes
from .setup import Recompute, Setup
from .step import Parts, Step, seconds, work

MICRO_BATCHES = (1, 2, 4, 8)
"""Sequences of a micro-batch that are tried."""
CHUNKS = (1, 2, 4)
"""Chunks of layers of a stage that are tried."""
CONTEXT = (1, 2, 4, 8)
"""Context-parallel degrees that are tried."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
NOT_TRAINED = ("shard-quant-block",)
"""Rules about how a checkpoint is stored; what is trained is not quantised like that."""
DAY = 86400
TRILLION = 10**12


def plan_training(model: ModelSpec, target: Target, *, top: int = 20, progress: Progress = SILENT) -> Plan:
    """The best `top` layouts to train the model on the target. Raises TargetError without a batch, or for a device
    that states no rate for the precision; LayoutError for a layout in the target that does not take all devices."""
    started, world = time.perf_counter(), target.cluster.world_size
    if not target.workload.global_batch:
        raise TargetError("the batch of a training step is not stated", "add global_batch to [workload]")
    target.cluster.device.rate(target.workload.scheme or model.dtype)
    wanted = [layout if layout.world_size == world else layout.check_world(world) for layout in target.layouts]
    wanted = wanted or [layout for layout in layouts(world, model.mixes_experts)
                        if layout.tp <= target.cluster.devices_per_node]
    search = Search(model, target)
    found: list[Trained] = []
    rejected: list[Rejected] = []
    for done, layout in enumerate(wanted):
        progress.update(f"layout {layout.text}", done, len(wanted))
        reasons = [Rejected(layout=layout, rule=finding.rule, message=f"{finding.subject}: {finding.message}")
                   for finding in blockers(model, msgspec.structs.replace(layout, cp=1), target.engine)
                   if finding.rule not in NOT_TRAINED]
        best = None if reasons else search.best(layout)
        if not reasons and not best:
            reasons = [Rejected(layout=layout, rule="batch", message="global_batch: "
                                f"{layout.dp} replicas cannot share {target.workload.global_batch} sequences")]
        rejected += reasons
        found += [best] if best else []
    found.sort(key=order)
    return Plan(candidates=(), training=explained(found, top), rejected=tuple(rejected), evaluated=search.evaluated,
                seconds=time.perf_counter() - started, workload=msgspec.structs.asdict(target.workload),
                notes=training_notes(model, target, search.known))


class Search:
    """The ways to train one model on one target."""

    def __init__(self, model: ModelSpec, target: Target) -> None:
        self.model, self.target, self.cluster = model, target, networked(target.cluster)
        self.known: Generation = generation(self.cluster.device.arch)
        self.scheme = target.workload.scheme or model.dtype
        self.flops = token_flops(model, target.workload.input_tokens)
        self.evaluated = 0
        self._parts: dict[tuple[int, ...], Parts] = {}

    def best(self, layout: Layout) -> Trained | None:
        """The fastest way that fits, or the one that needs least, over context-parallel degrees where the layout states
        none above 1; None where the replicas cannot share the batch."""
        degrees = [layout.cp] if layout.cp > 1 else [cp for cp in CONTEXT if layout.dp % cp == 0 and self._cuts(cp)]
        chosen = [self._fastest(msgspec.structs.replace(layout, cp=cp)) for cp in degrees]
        return min((one for one in chosen if one), key=order, default=None)

    def _cuts(self, cp: int) -> bool:
        """Whether sequences can be cut into two parts for each of cp ranks: attention alone can be told so, and a
        state goes from one token to the next."""
        kinds = {self.model.attentions[layer.attention].kind for layer in self.model.layers}
        return cp == 1 or ("linear" not in kinds and self.target.workload.input_tokens % (2 * cp) == 0)

    def _fastest(self, layout: Layout) -> Trained | None:
        return min((one for setup in self._setups(layout) for one in self._candidates(setup)), key=order, default=None)

    def _setups(self, layout: Layout) -> Iterator[Setup]:
        """Ways that differ in more than recomputation."""
        per_stage = len(self.model.layers) // layout.pp
        for micro in MICRO_BATCHES:
            for virtual in CHUNKS if layout.pp > 1 else (1,):
                for zero in (1,) if layout.pp > 1 or layout.dp == 1 else (1, 3):
                    try:
                        setup = Setup(layout=layout, sequence=self.target.workload.input_tokens, micro_batch=micro,
                                      global_batch=self.target.workload.global_batch, scheme=self.scheme, zero=zero,
                                      virtual=virtual)
                    except LayoutError:
                        continue
                    if virtual == 1 or (per_stage % virtual == 0 and setup.micro_batches % layout.pp == 0):
                        yield setup

    def _candidates(self, setup: Setup) -> Iterator[Trained]:
        layout = setup.layout
        key = (layout.tp, layout.ep, layout.cp, setup.micro_batch)
        if key not in self._parts:
            self._parts[key] = Parts(self.model, setup, self.cluster)
        parts = self._parts[key]
        stages = parts.stages(self.model, layout.pp, by_cost=setup.virtual == 1)
        made = work(self.model, setup, self.cluster, stages, parts=parts)
        for recompute in RECOMPUTE:
            self.evaluated += 1
            chosen = msgspec.structs.replace(setup, recompute=recompute)
            memory = peak_bytes(self.model, chosen, self.cluster, stages=stages)
            yield self._trained(chosen, seconds(made, chosen, self.known.reached), stages, memory)

    def _trained(self, setup: Setup, step: Step, stages: tuple[tuple[int, int], ...],
                 memory: tuple[dict[str, int], ...]) -> Trained:
        fullest = max(memory, key=lambda causes: sum(causes.values()))
        wide, tokens, world = self.known.within(self.model.mixes_experts), setup.tokens, setup.layout.world_size
        total = self.target.workload.total_tokens or TRILLION

        def estimate(value: float, unit: str) -> Estimate:
            return Estimate(value=value, low=value / wide, high=value * wide, unit=unit,
                            source=f"fitted to measured steps ({self.known.name})")

        rate = self.cluster.device.rate(self.scheme) * world
        return Trained(
            layout=setup.layout, fits=sum(fullest.values()) <= self.cluster.usable_bytes, stages=stages,
            bytes_per_device=fullest, bytes_per_stage=memory, usable_bytes=self.cluster.usable_bytes,
            micro_batch=setup.micro_batch, micro_batches=setup.micro_batches, recompute=setup.recompute,
            zero=setup.zero, virtual=setup.virtual, schedule=setup.schedule, step_s=estimate(step.seconds, "s"),
            tokens_per_s=estimate(tokens / step.seconds, "tokens/s"), mfu=tokens * self.flops / step.seconds / rate,
            days=estimate(total / tokens * step.seconds / DAY, "days"), bubble=step.bubble,
            step_seconds=dict(sorted(step.causes.items(), key=lambda item: -item[1])),
            limits=tuple(f"{cause} {value / step.seconds:.0%}" for cause, value in
                         sorted(step.causes.items(), key=lambda item: -item[1]) if value >= 0.1 * step.seconds),
            explanation="")


def order(one: Trained) -> tuple[bool, float]:
    """Those that fit first, by the time of a step; the others by what they need."""
    return not one.fits, one.step_s.value if one.fits else float(one.need_bytes)


def networked(cluster: Cluster) -> Cluster:
    """The cluster, where its network is not stated with that of the generation."""
    if cluster.network or cluster.nodes == 1:
        return cluster
    known = generation(cluster.device.arch)
    network = Link(name="network", devices=0, bandwidth=known.network, latency=1e-5, source=known.source)
    return msgspec.structs.replace(cluster, network=network)
