"""What one forward pass takes at the stated rates, class of operators by class: no share of a rate is assumed here.

A field may hold a number, or an array with one number for each of many passes: `timing` takes both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import log2
from typing import Any

import numpy as np

from dayzero.data.efficiency import Common
from dayzero.ops import distinct_experts
from dayzero.placement.memory import value_bytes
from dayzero.placement.operators import product
from dayzero.schema import Device, Layout, ModelSpec, Target

from .work import Step, Work, cache_work, expert_rows, pointwise_work, weight_work

Value = Any
"""A float, or an array of floats."""
CLASSES = ("linear", "expert", "cache", "latent", "state", "pointwise")
"""Of operators: each has two of the fields of `Terms`."""
_CLASSES = {"latent": "latent", "linear": "state"}
"""Kinds of attention whose operators are a class of their own."""


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
    """Collectives that cross the network."""
    sent: Value = 0.0
    """Seconds of what the rank sends, at the stated bandwidth."""
    whole_experts: Value = 0.0
    """1: each expert lies whole on one rank."""

    def add(self, kind: str, rate: float, moved: float) -> None:
        """Count more of a class."""
        setattr(self, f"{kind}_rate", getattr(self, f"{kind}_rate") + rate)
        setattr(self, f"{kind}_bytes", getattr(self, f"{kind}_bytes") + moved)

    @classmethod
    def stack(cls, passes: Sequence[Terms]) -> Terms:
        """Many passes as one, with arrays."""
        return cls(**{field.name: np.array([float(getattr(one, field.name)) for one in passes])
                      for field in fields(cls)})


def terms(model: ModelSpec, layout: Layout, target: Target, step: Step, common: Common) -> Terms:
    """Of a pass through all layers, on one pipeline stage. Raises TargetError when a link is not stated."""
    device, layers, made = target.cluster.device, range(len(model.layers)), Terms(rows=step.rows)
    for kind, item in classified(model, layout, target, layers, step):
        made.add(kind, arithmetic(kind, item, device, common), item.bytes / device.memory_bandwidth)
    made.operators = operators(model, layers)
    made.expert_rows, made.whole_experts = rows_of_expert(model, layout, step), float(layout.ep > 1)
    made.expert_layers = float(expert_layers(model, layers))
    _collectives(made, model, layout, target, step)
    return made


def classified(model: ModelSpec, layout: Layout, target: Target, layers: range, step: Step
               ) -> Iterator[tuple[str, Work]]:
    """The work of a rank, each with its class."""
    for item in weight_work(model, layout, target, layers, step):
        yield "expert" if item.kind == "experts" else "linear", item
    names = Counter(model.layers[index].attention for index in layers)
    for name, item in zip(names, cache_work(model, layout, layers, step), strict=True):
        yield _CLASSES.get(model.attentions[name].kind, "cache"), item
    yield "pointwise", pointwise_work(model, layout, layers, step)


def arithmetic(kind: str, item: Work, device: Device, common: Common) -> float:
    """Seconds of arithmetic at the matrix rate of bf16, or as much of a faster one as such kernels gain; 0 where the
    device states no rate."""
    plain = device.flops.get("bf16") or max(device.flops.values())
    rated = device.computes_in(item.scheme)
    if rated is None:
        return 0.0
    gain = {"linear": common.linear_gain, "expert": common.expert_gain}.get(kind, 0.0)
    return float(item.flops / (plain * (device.flops[rated] / plain) ** gain))


def operators(model: ModelSpec, layers: range) -> float:
    """Products with weights of some layers."""
    return float(sum(bisect_left(family.layers, layers.stop) - bisect_left(family.layers, layers.start)
                     for family in model.families
                     if family.parameters and len(family.shape) >= 2 and product(family, model)))


def rows_of_expert(model: ModelSpec, layout: Layout, step: Step) -> float:
    """Tokens of an expert that has any, in one pass."""
    block = next((block for block in model.feed_forwards.values() if block.experts), None)
    if block is None:
        return 1.0
    together = expert_rows(layout, step.rows)
    return max(1.0, together * block.top_k / distinct_experts(block.choices, block.top_k, together))


def expert_layers(model: ModelSpec, layers: range) -> int:
    """Layers with routed experts."""
    return sum(model.feed_forwards[model.layers[index].feed_forward].experts > 0 for index in layers)


def _collectives(made: Terms, model: ModelSpec, layout: Layout, target: Target, step: Step) -> None:
    tp, ep, item, cluster = layout.tp, layout.ep, value_bytes(model), target.cluster
    inside = cluster.devices_per_node
    if tp > 1:
        link = cluster.link(tp)
        made.reduces = float((2 if layout.attention_degree > 1 else 1) * len(model.layers))
        made.reduce_steps = made.reduces * log2(tp)
        made.far += made.reduces if tp > inside else 0.0
        made.sent += made.reduces * 2 * (tp - 1) / tp * step.rows * model.hidden_size * item / link.bandwidth
    if ep > tp and made.expert_layers:
        block = next(block for block in model.feed_forwards.values() if block.experts)
        copies = distinct_experts(ep, 1, block.visited)
        made.exchanges = 2 * made.expert_layers
        made.far += made.exchanges if ep > inside else 0.0
        made.sent += (made.exchanges * step.rows / tp * copies * (ep - 1) / ep * block.input_width * item
                      / cluster.link(ep).bandwidth)
