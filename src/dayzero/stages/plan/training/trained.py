"""One way to train in full: time and memory by cause, rates, days, and what limits it."""

from __future__ import annotations

from dayzero.data.training import Generation
from dayzero.schema import Cluster, Estimate, ModelSpec, Target, Trained

from .dealing import Chunks
from .flops import token_flops
from .memory import away_bytes, peak_bytes
from .setup import OFFLOAD, RECOMPUTE, Setup
from .step import Step, seconds, work
from .topology import over

DAY = 86400
TRILLION = 10**12
NAMED = 0.1
"""Share of a step from which a cause is named among what limits it."""


class Maker:
    """Makes the entries of a plan for one model on one target."""

    def __init__(self, model: ModelSpec, target: Target, cluster: Cluster, known: Generation) -> None:
        self.model, self.target, self.cluster, self.known = model, target, cluster, known
        self.scheme = target.workload.scheme or model.dtype
        self.reached = over(known.reached, cluster)
        self.flops = token_flops(model, target.workload.input_tokens)

    def step(self, setup: Setup, chunks: Chunks) -> Step:
        """The time of a step."""
        return seconds(work(self.model, setup, self.cluster, chunks), setup, self.reached)

    def setup(self, one: Trained) -> Setup:
        """How an entry is trained."""
        recompute = next(name for name in RECOMPUTE if name == one.recompute)
        offload = next(name for name in OFFLOAD if name == one.offload)
        return Setup(layout=one.layout, sequence=self.target.workload.input_tokens, micro_batch=one.micro_batch,
                     global_batch=self.target.workload.global_batch, scheme=self.scheme, recompute=recompute,
                     zero=one.zero, virtual=one.virtual, sequence_parallel=one.sequence_parallel, offload=offload,
                     schedule="zero-bubble" if one.schedule == "zero-bubble" else "1f1b")

    def trained(self, setup: Setup, chunks: Chunks) -> Trained:
        """The entry, without the explanation, which needs the others."""
        step = self.step(setup, chunks)
        memory = peak_bytes(self.model, setup, self.cluster, chunks=chunks)
        fullest = max(memory, key=lambda causes: sum(causes.values()))
        tokens, world = setup.tokens, setup.layout.world_size
        total = self.target.workload.total_tokens or TRILLION
        rate = self.cluster.device.rate(self.scheme) * world
        causes = sorted(step.causes.items(), key=lambda item: -item[1])
        host = away_bytes(self.model, setup, chunks)
        room = self.cluster.device.host_memory_bytes
        return Trained(
            layout=setup.layout, stages=chunks, bytes_per_device=fullest, bytes_per_stage=memory,
            fits=sum(fullest.values()) <= self.cluster.usable_bytes and (room is None or host <= room),
            usable_bytes=self.cluster.usable_bytes, micro_batch=setup.micro_batch, micro_batches=setup.micro_batches,
            recompute=setup.recompute, zero=setup.zero, virtual=setup.virtual, schedule=setup.schedule,
            sequence_parallel=setup.sequence_parallel, offload=setup.offload, host_bytes=host,
            step_s=self._estimate(step.seconds, "s"), tokens_per_s=self._estimate(tokens / step.seconds, "tokens/s"),
            days=self._estimate(total / tokens * step.seconds / DAY, "days"), bubble=step.bubble,
            mfu=tokens * self.flops / step.seconds / rate, step_seconds=dict(causes),
            limits=tuple(f"{cause} {value / step.seconds:.0%}" for cause, value in causes
                         if value >= NAMED * step.seconds), explanation="",
        )  # fmt: skip

    def _estimate(self, value: float, unit: str) -> Estimate:
        wide = self.known.within(self.model.mixes_experts)
        return Estimate(value=value, low=value / wide, high=value * wide, unit=unit,
                        source=f"fitted to measured steps ({self.known.name})")
