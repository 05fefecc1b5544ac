"""What the ranks of a layout send each other in one step; of several stages and many layouts as arrays.

Ranks are numbered with tp innermost, then pp, then dp, so a tp group is tp neighbouring devices and all stages of one
replica are tp * pp neighbouring ones. Each collective takes the slowest link that its group needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dayzero.arrays import Value, ceiling, choose, each, logarithm, smallest
from dayzero.ops import distinct_experts
from dayzero.placement.many import Layouts
from dayzero.placement.memory import attention_sequences, value_bytes
from dayzero.schema import Attention, Cluster, Layout, ModelSpec

from .stage import Stage
from .work import Step

LOGIT_ITEM = 4
"""Bytes of one gathered logit, or of another value in fp32."""


@dataclass(frozen=True)
class Wire:
    """The link that groups of ranks need, or one for each of many layouts."""

    bandwidth: Value
    """Bytes a second of one device."""
    latency: Value
    """Seconds of a small message."""
    far: Value
    """1: it is the network between nodes."""


@dataclass(frozen=True)
class Sent:
    """Equal messages or collectives, one after another."""

    wire: Wire
    """What they go over."""
    times: Value
    """How many."""
    messages: Value
    """Small messages that one of them takes at least, one after another."""
    bytes: Value
    """Bytes that a rank sends, of all together."""
    collective: Literal["reduce", "exchange", ""] = ""
    """What it costs like, whatever its size: an all-reduce, an all-to-all, or plain messages."""
    doublings: Value = 0.0
    """Doublings of the ranks that a reduce goes through."""


def wire(cluster: Cluster, ranks: Value) -> Wire:
    """The link of groups of so many neighbours; a single rank needs none. Raises TargetError if it is not stated."""
    def of(figure: str) -> Value:
        return each(ranks, lambda count: float(getattr(cluster.link(count), figure)) if count > 1 else _NONE[figure])

    far = each(ranks, lambda count: float(count > 1 and cluster.link(count) is cluster.network))
    return Wire(of("bandwidth"), of("latency"), far)


_NONE = {"bandwidth": np.inf, "latency": 0.0}


def sends(model: ModelSpec, layout: Layout | Layouts, cluster: Cluster, held: Stage, step: Step,
          broadcast: bool = False) -> Iterator[Sent]:
    """All that a rank of the stage sends in a step, without what goes to the next stage. `broadcast`: see `logits`."""
    yield tensor_parallel(model, layout, cluster, held, step)
    if np.any(layout.ep > layout.tp):
        yield from expert_parallel(model, layout, cluster, held, step)
    if np.any(layout.cp > 1):
        yield from context_parallel(model, layout, cluster, held, step)
    if np.any(held.last):
        yield from logits(model, layout, cluster, held, step, broadcast)


def residual(model: ModelSpec, step: Step) -> Value:
    """Bytes of the residual stream of one pass."""
    return step.rows * model.hidden_size * value_bytes(model)


def tensor_parallel(model: ModelSpec, layout: Layout | Layouts, cluster: Cluster, held: Stage, step: Step) -> Sent:
    """Two all-reduces of the residual stream a layer, after attention and after the feed-forward block; attention that
    is not split needs none. A ring sends 2 (n-1)/n of the buffer from each rank; the latency is that of reducing and
    broadcasting over a tree, 2 log2(n) messages."""
    tp = layout.tp
    times = choose(tp > 1, choose(layout.attention_degree > 1, 2.0, 1.0), 0.0) * held.layers * step.passes
    return Sent(wire(cluster, tp), times, 2 * ceiling(logarithm(tp)), times * 2 * (tp - 1) / tp * residual(model, step),
                "reduce", logarithm(tp))


def expert_parallel(model: ModelSpec, layout: Layout | Layouts, cluster: Cluster, held: Stage, step: Step
                    ) -> Iterator[Sent]:
    """Dispatch and combine of each layer with experts, when the experts of a layer are spread over several replicas; a
    token goes once to each rank that holds one of its experts. Within one tp group every rank has all tokens, and the
    all-reduce after the block does it."""
    ep, spread = layout.ep, layout.ep > layout.tp
    over = wire(cluster, choose(spread, smallest(ep * layout.pp, cluster.world_size), 1))
    for name, layers in held.blocks.items():
        block = model.feed_forwards[name]
        if block.experts and np.any(layers):
            times = choose(spread, 2.0, 0.0) * layers * step.passes
            copies = distinct_experts(ep, 1, block.visited)
            rows = step.rows / layout.tp * copies * (ep - 1) / ep
            yield Sent(over, times, 1.0, times * rows * block.input_width * value_bytes(model), "exchange")


def context_parallel(model: ModelSpec, layout: Layout | Layouts, cluster: Cluster, held: Stage, step: Step
                     ) -> Iterator[Sent]:
    """What ranks exchange that share a sequence's tokens. Decoding: each layer's queries are gathered, and of every
    head the partial results and the logarithm of their sum of exponentials are brought together: an all-gather of the
    two small ones and a reduce-scatter, each of half as many steps as an all-reduce. Prefill: keys and values that
    earlier chunks left in the cache are gathered."""
    cp, item = layout.cp, value_bytes(model)
    over, shared = wire(cluster, cp), layout.cp > 1
    rows = attention_sequences(layout, step.sequences)
    for name, layers in held.attentions.items():
        attention = model.attentions[name]
        if attention.kind == "linear" or not attention.heads or not np.any(layers):
            continue
        if step.phase == "decode":
            heads = -(-attention.heads // layout.attention_degree)
            query, value = _exchanged(attention)
            sent = rows * heads * (cp - 1) * ((query + value) * item + cp * LOGIT_ITEM)
            calls = 3.0
        else:
            width = -(-attention.kv_heads // layout.attention_degree) * sum(_exchanged(attention))
            width = choose(attention.kind == "latent", _exchanged(attention)[0], width)
            sent, calls = rows * step.context * width * item * (cp - 1) / cp, float(step.context > 0)
        times = choose(shared, calls, 0.0) * layers * step.passes
        yield Sent(over, times, ceiling(logarithm(cp)), layers * step.passes * sent, "reduce", logarithm(cp) / 2)


def _exchanged(attention: Attention) -> tuple[int, int]:
    """Values of a head's query, and of its result, as they meet the cache."""
    if attention.kind == "latent":
        return (attention.kv_rank or 0) + (attention.rope_dim or 0), attention.kv_rank or 0
    return attention.head_dim, attention.v_head_dim


def logits(model: ModelSpec, layout: Layout | Layouts, cluster: Cluster, held: Stage, step: Step, broadcast: bool
           ) -> Iterator[Sent]:
    """The vocabulary's logits of each sequence, gathered over tp; then what the other stages need: the chosen token (a
    message), or all logits with `broadcast`, as the reference runtime does it."""
    tp, pp = layout.tp, layout.pp
    size = held.last * step.sequences * model.vocab_size * LOGIT_ITEM
    yield Sent(wire(cluster, tp), held.last * (tp > 1), ceiling(logarithm(tp)), (tp - 1) / tp * size)
    over = wire(cluster, choose(pp > 1, smallest(tp * pp, cluster.world_size), 1))
    yield Sent(over, held.last * (pp > 1), ceiling(logarithm(pp)), size if broadcast else 0.0)
