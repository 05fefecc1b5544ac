"""What one forward pass takes at the stated rates, class of operators by class: no share of a rate is assumed here.

A field may hold a number, or an array with one number for each of many passes: `timing` takes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from dayzero.arrays import Value, choose, largest, smallest
from dayzero.data.efficiency import Common
from dayzero.ops import distinct_experts
from dayzero.placement.many import Layouts
from dayzero.schema import Device, Layout, ModelSpec, Target

from .stage import Stage, stage
from .traffic import Sending, Sent, sends
from .work import Step, Work, expert_rows, stage_work

__all__ = ["CLASSES", "Terms", "Value", "arithmetic", "rows_of_expert", "terms"]
ROUND = 6.6e-6
"""Seconds of a second round among the ranks of a node, at the whole bandwidth of the link: docs/numbers.md."""
FAR_EXCHANGE = 12e-6
"""Seconds that an all-to-all between nodes takes more than one inside a node: tables of dispatch and combine over 1 to
8 nodes (docs/numbers.md, "Measured operators")."""
CLASSES = ("linear", "expert", "cache", "latent", "state", "pointwise")
"""Of operators: each has two of the fields of `Terms`."""


@dataclass
class Terms:
    """One pass of one rank."""

    linear_rate: Value = 0.0
    """Seconds of arithmetic of products with weights, at the gain of their scheme."""
    linear_bytes: Value = 0.0
    """Seconds of memory of the same."""
    expert_rate: Value = 0.0
    """The same of routed experts."""
    expert_bytes: Value = 0.0
    """Seconds of memory of the same."""
    cache_rate: Value = 0.0
    """The same of attention over caches."""
    cache_bytes: Value = 0.0
    """Seconds of memory of the same."""
    latent_rate: Value = 0.0
    """The same of attention over latent caches."""
    latent_bytes: Value = 0.0
    """Seconds of memory of the same."""
    state_rate: Value = 0.0
    """The same of linear attention."""
    state_bytes: Value = 0.0
    """Seconds of memory of the same."""
    pointwise_rate: Value = 0.0
    """The same of operators between products, which memory bounds."""
    pointwise_bytes: Value = 0.0
    """Seconds of memory of the same."""
    operators: Value = 0.0
    """Products with weights of the layers."""
    expert_layers: Value = 0.0
    """Layers with routed experts."""
    rows: Value = 1.0
    """Tokens of the replica."""
    expert_rows: Value = 1.0
    """Tokens of an expert that has any."""
    reduces: Value = 0.0
    """All-reduces."""
    reduce_steps: Value = 0.0
    """All-reduces times doublings of their ranks."""
    exchanges: Value = 0.0
    """All-to-alls."""
    far: Value = 0.0
    """All-reduces that cross the network."""
    sent: Value = 0.0
    """Seconds of what the rank sends over links that were not measured, at the stated bandwidth."""
    latency: Value = 0.0
    """Seconds of messages that no call is counted for: of logits, of what goes to the next stage, and all that goes
    over measured links."""
    whole_experts: Value = 0.0
    """1: each expert lies whole on one rank."""

    def add(self, group: str, rate: Value, moved: Value) -> None:
        """Count more of a class."""
        setattr(self, f"{group}_rate", getattr(self, f"{group}_rate") + rate)
        setattr(self, f"{group}_bytes", getattr(self, f"{group}_bytes") + moved)

    def send(self, sent: Sent) -> None:
        """Count what ranks send each other."""
        self.sent = self.sent + (sent.seconds.sending if sent.collective in ("", "exchange") else summed(sent))
        self.latency = self.latency + sent.seconds.waiting + sent.seconds.reached
        if not sent.collective:
            return
        if sent.collective == "exchange":
            self.exchanges = self.exchanges + sent.times * sent.calls.called
            self.latency = self.latency + sent.times * sent.calls.far * FAR_EXCHANGE
        else:
            self.far = self.far + sent.times * sent.calls.far
            self.reduces = self.reduces + sent.times * sent.calls.called
            self.reduce_steps = self.reduce_steps + sent.times * sent.calls.doublings

    @classmethod
    def stack(cls, passes: Sequence[Terms]) -> Terms:
        """Many passes as one, with arrays."""
        return cls(**{field.name: np.array([float(getattr(one, field.name)) for one in passes])
                      for field in fields(cls)})


def summed(sent: Sent) -> Value:
    """Seconds of what all-reduces inside a node send: as a ring, or each rank its whole part to every other, which is
    ranks / 2 times as much and has no second round; the faster."""
    ring, ranks = sent.seconds.sending, 2.0**sent.calls.doublings
    inside = (sent.calls.called > 0) & (sent.calls.far == 0) & (ranks > 1)
    return choose(inside, smallest(ring * ranks / 2, ring + sent.times * ROUND), ring)


def terms(model: ModelSpec, layout: Layout | Layouts, target: Target, step: Step, common: Common,
          held: Stage | None = None) -> Terms:
    """Of a pass through a stage, or without one through all layers. Raises TargetError when a link is not stated."""
    held = held or stage(model, range(len(model.layers)))
    device, made = target.cluster.device, Terms(rows=step.rows)
    for item in stage_work(model, layout, target, held, step, by_role=False):
        made.add(item.group, arithmetic(item, device, common), item.bytes / device.memory_bandwidth)
    made.operators = held.operators * step.passes
    made.expert_rows, made.whole_experts = rows_of_expert(model, layout, step), 1.0 * (layout.ep > 1)
    made.expert_layers = expert_layers(model, held) * step.passes
    for sent in sends(Sending(model, layout, target.cluster, counted=True), held, step):
        made.send(sent)
    return made


def arithmetic(item: Work, device: Device, common: Common) -> Value:
    """Seconds of arithmetic at the matrix rate of bf16, or as much of a faster one as such kernels gain; 0 where the
    device states no rate."""
    plain = device.flops.get("bf16") or max(device.flops.values())
    rated = device.computes_in(item.scheme)
    if rated is None:
        return 0.0
    gain = {"linear": common.linear_gain, "expert": common.expert_gain}.get(item.group, 0.0)
    return item.flops / (plain * (device.flops[rated] / plain) ** gain)


def rows_of_expert(model: ModelSpec, layout: Layout | Layouts, step: Step) -> Value:
    """Tokens of an expert that has any, in one pass."""
    block = next((block for block in model.feed_forwards.values() if block.experts), None)
    if block is None:
        return 1.0
    together = expert_rows(layout, step.rows)
    return largest(1.0, together * block.top_k / distinct_experts(block.choices, block.top_k, together))


def expert_layers(model: ModelSpec, held: Stage) -> Value:
    """Layers with routed experts."""
    return sum(layers for name, layers in held.blocks.items() if model.feed_forwards[name].experts)
