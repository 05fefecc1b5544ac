"""What one rank does for one micro-batch in one layer: columns of seconds at stated rates, and counts.

A load is a vector over `COLUMNS`, one for forward and one for backward; of many ways to train each column is an array.
What is really reached divides it later, so that the same loads serve every fit. docs/numbers.md, section Training, has
the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from dayzero.arrays import Value, choose
from dayzero.ops import OPERATORS, attention_axes, linear_axes
from dayzero.placement.operators import product, routing_block
from dayzero.placement.split import is_expert, is_mtp, ways
from dayzero.schema import Attention, Cluster, FeedForward, ModelSpec, WeightFamily

from .setup import Setup, Ways
from .topology import all_to_all, group, ring

Vector = np.ndarray[Any, np.dtype[np.float64]]
COLUMNS = ("matrix16", "matrix8", "matrix4", "experts16", "experts8", "experts4", "surface", "attention", "scores",
           "scan", "pointwise", "cast", "routed", "inside", "network", "exchange", "exchange_network", "dispatch",
           "dispatch_network", "messages", "launches", "layers")
"""Seconds at stated rates; the last three are counts: collectives, kernels, layers with experts."""
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
WEIGHTED = [COLUMN[name] for name in ("matrix16", "matrix8", "matrix4", "experts16", "experts8", "experts4", "surface")]
"""Of products with weights: what the gradients of the weights take is as much as they take forward."""
ITEM = 2
"""Bytes of an activation."""
CAST_BYTES = 3
"""Of a value that is cast: read in 16 bits, written in 8."""
SCORE_BYTES = 13
"""Of one score that is not kept on the chip: written, read and written by the softmax, by dropout with its mask, and
read for the weighted sum."""
KERNELS = 10
"""Kernels of a layer forward that are no products: norms, positions, core of attention, activation, additions."""
ROUTING = 12
"""More of a layer with experts: scores, the choice, counts, rows sorted and sorted back, their weighted sum, losses."""
SCANNING = 6
"""More of a layer with a state: a short convolution, gates, the chunks of the scan."""
BITS = {"fp8": 8, "mxfp8": 8, "fp4": 4, "mxfp4": 4, "nvfp4": 4}
"""Bits that products compute in, of the schemes with fewer than 16."""


class Load(NamedTuple):
    """Forward and backward of something, for one micro-batch on one rank."""

    forward: Vector
    """Seconds and counts. Shape [columns] or, of many ways, [columns, ways]."""
    backward: Vector
    """The same."""
    core: Vector
    """Of forward what selective recomputation repeats, see `Setup.recompute`."""

    def plus(self, other: Load, times: float = 1.0) -> Load:
        """Itself and so many times the other."""
        return Load(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


def nothing(like: Value = 0.0) -> Load:
    """A load of zeros, for as many ways as the number or array has."""
    return Load(*(np.zeros((len(COLUMNS), *np.shape(like))) for _ in range(3)))


class Loads:
    """Loads of the parts of one model, trained in one way on one cluster."""

    def __init__(self, model: ModelSpec, setup: Setup | Ways, cluster: Cluster) -> None:
        self.model, self.setup, self.cluster = model, setup, cluster
        device = cluster.device
        rated = device.computes_in(setup.scheme) or model.dtype
        self.bits, self.wide = BITS.get(rated, 16), device.rate("bf16" if setup.scheme in BITS else setup.scheme)
        self.narrow, self.memory = device.rate(rated), device.memory_bandwidth

    def layer(self, index: int) -> Load:
        """A decoder layer like number `index`."""
        model, layer = self.model, self.model.layers[index]
        block = model.feed_forwards[layer.feed_forward]
        load = nothing(self.setup.rows)
        matrices = 0.0
        for family in layer_families(model, index):
            matrices = matrices + self._product(load, family, block)
        self._mixing(load, model.attentions[layer.attention])
        self._between(load, model.attentions[layer.attention], block)
        self._sending(load, model.attentions[layer.attention], block)
        linear = model.attentions[layer.attention].kind == "linear"
        kernels = KERNELS + (ROUTING if block.experts else 0) + (SCANNING if linear else 0)
        self._add(load, "launches", (2 if self.bits < 16 else 1) * matrices + kernels, 2.0)
        return load

    def _add(self, load: Load, column: str, seconds: Value, backward: Value) -> None:
        load.forward[COLUMN[column]] += seconds
        load.backward[COLUMN[column]] += backward * seconds

    def _product(self, load: Load, family: WeightFamily, block: FeedForward) -> Value:
        """Products with one family: twice as much backward, for inputs and weights; casts of what they read. Gives the
        number of kernels."""
        setup, layout = self.setup, self.setup.layout
        outer, inner = sides(family)
        parts = ways(family, self.model, layout)
        rows: Value = setup.rows
        copies: Value = 1.0
        experts = is_expert(family) and block.experts > 0
        if experts:
            rows = setup.rows * block.visited / layout.tp * layout.expert_tp
            copies = family.experts / layout.ep
        times = family.parameters / max(1, len(family.layers)) / (outer * inner) / max(1, family.experts)
        flops = 2 * rows * outer * inner / parts * times
        moved = ITEM * times * (rows * (outer + inner) / parts**0.5 + copies * outer * inner / parts)
        kind, whole = ("experts" if experts else "matrix"), 1.0 if setup.frozen else 2.0
        routing = family.role.split(".")[0] == "router"
        bits, rate = (16, self.wide) if routing else (self.bits, self.narrow)
        self._add(load, f"{kind}{bits}", flops / rate, whole)
        self._add(load, "surface", moved / self.memory, whole)
        if self.bits < 16:
            values = (rows * inner + copies * outer * inner / parts) * times
            self._add(load, "cast", CAST_BYTES * values / self.memory, 2.0)
        return times if setup.grouped or not experts else times * copies

    def _mixing(self, load: Load, attention: Attention) -> None:
        """The core of attention. Fused: causal pairs, two and a half times backward; not fused: all pairs, twice."""
        setup = self.setup
        heads = -(-attention.heads // setup.layout.attention_degree)
        local = setup.micro_batch * heads / max(1, attention.heads) / setup.layout.cp
        before = load.forward.copy()
        if attention.kind == "linear":
            axes = linear_axes(attention, 1, setup.sequence, ITEM)
            definition = OPERATORS.get("linear_attention")
            self._add(load, "attention", local * definition.flops(axes) / self.wide, 2.0)
            self._add(load, "scan", local * definition.bytes(axes) / self.memory, 2.0)
        elif setup.fused_attention:
            axes = attention_axes(attention, 1, setup.sequence, 0)
            self._add(load, "attention", local * OPERATORS.get("attention").flops(axes) / self.wide, 2.5)
        else:
            pairs = setup.micro_batch * heads * float(setup.sequence) ** 2 / setup.layout.cp
            width = attention.head_dim + attention.v_head_dim
            self._add(load, "matrix16", 2 * pairs * width / self.wide, 2.0)
            self._add(load, "scores", pairs * SCORE_BYTES / self.memory, 2.0)
        if not setup.fused_attention:
            load.core[:] += load.forward - before

    def _between(self, load: Load, attention: Attention, block: FeedForward) -> None:
        """Norms and residual additions, positions, the activation, rows sorted by expert."""
        setup, hidden = self.setup, self.model.hidden_size
        degree = setup.layout.attention_degree
        values = 10 * setup.rows * hidden / setup.spread
        values += 2 * setup.rows * (attention.heads + attention.kv_heads) * attention.head_dim / degree
        visits = setup.rows * block.visited / setup.layout.tp * setup.layout.expert_tp
        inner = visits * block.width / setup.layout.expert_tp if block.experts else setup.rows * block.width / degree
        values += 3 * (inner + setup.rows * block.shared_width / degree)
        self._add(load, "pointwise", ITEM * values / self.memory, 2.0)
        if setup.fused_attention:
            load.core[COLUMN["pointwise"]] += ITEM * values / self.memory
        if block.experts:
            self._add(load, "routed", 4 * visits * block.input_width * ITEM / self.memory, 1.0)
            self._add(load, "layers", 1.0, 1.0)

    def _sending(self, load: Load, attention: Attention, block: FeedForward) -> None:
        """Tensor parallel: an all-reduce, or all-gather and reduce-scatter, for each block; context parallel: keys and
        values go round; expert parallel: dispatch and combine."""
        setup, layout, cluster = self.setup, self.setup.layout, self.cluster
        once = block.experts > 0 and not block.shared_width
        blocks = choose((layout.tp > 1) & once & (layout.ep >= layout.tp), 1, choose(layout.tp > 1, 2, 0))
        sent = 2 * blocks * (layout.tp - 1) / layout.tp * setup.rows * self.model.hidden_size * ITEM
        within, across = ring(sent, group(layout.tp, 1, cluster), cluster)
        self._add(load, "inside", within, 1.0)
        self._add(load, "network", across, 1.0)
        self._add(load, "messages", 2.0 * blocks, 1.0)
        latent = attention.kind == "latent"
        width = ((attention.kv_rank or 0) + (attention.rope_dim or 0) if latent
                 else -(-attention.kv_heads // layout.tp) * (attention.head_dim + attention.v_head_dim))
        sent = (layout.cp - 1) * setup.rows * width * ITEM
        within, across = ring(sent, group(layout.cp, layout.tp, cluster), cluster)
        self._add(load, "exchange", within, 2.0)
        self._add(load, "exchange_network", across, 2.0)
        self._add(load, "messages", layout.cp - 1, 2.0)
        if block.experts:
            sent = 2 * setup.rows / layout.tp * block.input_width * ITEM
            members = group(layout.ep, layout.expert_tp, cluster)
            within, across = all_to_all(sent, block.visited, members, cluster)
            self._add(load, "dispatch", within, 1.0)
            self._add(load, "dispatch_network", across, 1.0)
            self._add(load, "messages", choose(layout.ep > 1, 2.0, 0.0), 1.0)

    def ends(self) -> tuple[Load, Load]:
        """(the embedding of the first stage; norm, head and loss of the last)."""
        setup, model, tp = self.setup, self.model, self.setup.layout.tp
        first, last = nothing(setup.rows), nothing(setup.rows)
        self._add(first, "pointwise", 3 * setup.rows * model.hidden_size * ITEM / setup.spread / self.memory, 1.0)
        flops = 2 * setup.rows * model.hidden_size * model.vocab_size / tp
        weights = model.hidden_size * model.vocab_size / tp
        whole = 1.0 if setup.frozen else 2.0
        self._add(last, "matrix16", flops / self.wide, whole)
        self._add(last, "surface", (setup.rows * (model.hidden_size + model.vocab_size / tp) + weights) * ITEM
                  / self.memory, whole)
        self._add(last, "pointwise", 5 * setup.rows * model.vocab_size / tp * ITEM / self.memory, 1.0)
        for load, kernels in ((first, 4.0), (last, 12.0)):
            self._add(load, "launches", kernels, 1.0)
        return first, last

    def draft(self) -> Load:
        """One layer of multi-token prediction: a layer, what joins two inputs for it, and the head once more."""
        model, setup = self.model, self.setup
        load = self.layer(len(model.layers) - 1).plus(self.ends()[1])
        flops = 4 * setup.rows * model.hidden_size**2 / setup.layout.tp
        self._add(load, f"matrix{self.bits}", flops / self.narrow, 2.0)
        return load


def layer_families(model: ModelSpec, index: int) -> Iterator[WeightFamily]:
    """The families of a layer that are multiplied with: matrices of at least two axes."""
    for family in model.families:
        if (family.parameters and len(family.shape) > 1 and index in family.layers and not is_mtp(family, model)
                and product(family, model)):
            yield family


def sides(family: WeightFamily) -> tuple[float, float]:
    """(outer, inner) width of one matrix, with packed values counted one by one."""
    outer = float(family.shape[0])
    each = family.parameters / max(1, family.count)
    return (outer, each / outer) if len(family.shape) == 2 and each >= outer else (sqrt(each), sqrt(each))


def held(family: WeightFamily, model: ModelSpec, setup: Setup | Ways, layers: float) -> tuple[Value, bool]:
    """(parameters of the family on one rank that holds `layers` of its layers, whether they are those of experts)."""
    each = family.parameters / max(1, len(family.layers)) * layers
    routed = is_expert(family) and routing_block(family, model) is not None
    return each / ways(family, model, setup.layout) / (setup.layout.ep if routed else 1), routed
