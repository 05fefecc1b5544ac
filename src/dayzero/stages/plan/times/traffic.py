"""What the ranks of a layout send each other in one step; of several stages and many layouts as arrays.

Ranks are numbered with tp innermost, then pp, then dp, so a tp group is tp neighbouring devices, all stages of one
replica are tp * pp neighbouring ones, and ranks that share experts are the tp groups of one stage of several replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dayzero.arrays import Value, choose, largest
from dayzero.placement.many import Layouts
from dayzero.placement.memory import attention_sequences, value_bytes
from dayzero.schema import Attention, Cluster, Layout, ModelSpec

from .collectives import Calls, Fabric, Group, Seconds, all_gather, all_reduce, dispatch, fabric
from .collectives import broadcast as spread
from .stage import Stage
from .work import Step

LOGIT_ITEM = 4
"""Bytes of one gathered logit, or of another value in fp32."""


@dataclass(frozen=True)
class Sent:
    """Equal messages or collectives, one after another."""

    seconds: Seconds
    """All of them, at the stated rates."""
    times: Value
    """How many."""
    calls: Calls
    """What one of them counts as where the time of a call is known as a whole; latencies of such links are then no part
    of `seconds`."""
    collective: Literal["reduce", "exchange", ""] = ""
    """What it costs like, whatever its size: an all-reduce, an all-to-all, or plain messages."""


@dataclass(frozen=True)
class Sending:
    """A model's layouts on a cluster, and how their calls are counted."""

    model: ModelSpec
    """What runs."""
    layout: Layout | Layouts
    """How."""
    cluster: Cluster
    """Where."""
    counted: bool
    """Whether the time of a call is known as a whole: then links that were not measured have no latency of their own,
    but for plain messages."""

    def fabric(self, collective: str) -> Fabric:
        """The levels as a collective meets them."""
        return fabric(self.cluster, collective, latency=not self.counted)


def sends(sending: Sending, held: Stage, step: Step, broadcast: bool = False) -> Iterator[Sent]:
    """All that a rank of the stage sends in a step, without what goes to the next stage. `broadcast`: see `logits`.
    Raises TargetError where a link is not stated."""
    layout = sending.layout
    yield from tensor_parallel(sending, held, step)
    if np.any(layout.ep > layout.tp):
        yield from expert_parallel(sending, held, step)
    if np.any(layout.cp > 1):
        yield from context_parallel(sending, held, step)
    if np.any(held.last):
        yield from logits(sending, held, step, broadcast)


def residual(model: ModelSpec, step: Step) -> Value:
    """Bytes of the residual stream of one pass."""
    return step.rows * model.hidden_size * value_bytes(model)


def tensor_parallel(sending: Sending, held: Stage, step: Step) -> Iterator[Sent]:
    """Two all-reduces of the residual stream a layer, after attention and after the feed-forward block. Where groups of
    ranks within tp have attention of their own, the first is over such a group and of its own sequences; what others
    have is gathered before the block, and scattered again in the place of the second."""
    layout, model = sending.layout, sending.model
    every, own = residual(model, step), attention_sequences(layout, step.sequences) / step.sequences
    whole = not np.any(layout.attention_degree < layout.tp)
    yield _reduced(sending, layout.tp, every, (2.0 if whole else 1.0) * held.layers * step.passes)
    if not whole:
        yield _reduced(sending, layout.attention_degree, own * every, held.layers * step.passes)


def _reduced(sending: Sending, ranks: Value, size: Value, count: Value) -> Sent:
    """So many all-reduces, where there are several ranks."""
    over, group, times = sending.fabric("all_reduce"), Group(ranks), choose(ranks > 1, 1.0, 0.0) * count
    return Sent(all_reduce(over, group, size).times(times), times, over.calls(group), "reduce")


def expert_parallel(sending: Sending, held: Stage, step: Step) -> Iterator[Sent]:
    """Dispatch and combine of each layer with experts, when the experts of a layer are spread over several replicas; a
    token goes once to each domain of ranks that hold one of its experts. Within one tp group every rank has all tokens,
    and the all-reduce after the block does it."""
    model, layout, over = sending.model, sending.layout, sending.fabric("all_to_all")
    spread = layout.ep > layout.tp
    group = Group(choose(spread, layout.tp, 1), 1, largest(layout.ep // layout.tp, 1), layout.tp * layout.pp)
    calls = over.calls(group)
    for name, layers in held.blocks.items():
        block = model.feed_forwards[name]
        if block.experts and np.any(layers):
            times = choose(spread, 2.0, 0.0) * layers * step.passes
            size = step.rows / layout.tp * block.input_width * value_bytes(model)
            seconds = dispatch(over, group, size, block.visited, step.imbalance)
            yield Sent(seconds.times(times), times, calls, "exchange")


def context_parallel(sending: Sending, held: Stage, step: Step) -> Iterator[Sent]:
    """What ranks exchange that share a sequence's tokens. Decoding: each layer's queries are gathered, and of every
    head the partial results and the logarithm of their sum of exponentials are brought together: an all-gather of the
    two small ones and a reduce-scatter. Prefill: keys and values that earlier chunks left in the cache are gathered.
    Each of these is half of an all-reduce."""
    model, layout, over = sending.model, sending.layout, sending.fabric("all_gather")
    cp, item, group = layout.cp, value_bytes(model), Group(layout.cp)
    half = over.calls(group)
    half = half._replace(doublings=half.doublings / 2)
    rows = attention_sequences(layout, step.sequences)
    for name, layers in held.attentions.items():
        attention = model.attentions[name]
        if attention.kind == "linear" or not attention.heads or not np.any(layers):
            continue
        if step.phase == "decode":
            heads = -(-attention.heads // layout.attention_degree)
            query, value = _exchanged(attention)
            calls, size = 3.0, rows * heads * cp * ((query + value) * item + cp * LOGIT_ITEM)
        else:
            width = -(-attention.kv_heads // layout.attention_degree) * sum(_exchanged(attention))
            width = choose(attention.kind == "latent", _exchanged(attention)[0], width)
            calls, size = float(step.context > 0), rows * step.context * width * item
        times = choose(cp > 1, calls, 0.0) * layers * step.passes
        yield Sent(all_gather(over, group, size / max(calls, 1.0)).times(times), times, half, "reduce")


def _exchanged(attention: Attention) -> tuple[int, int]:
    """Values of a head's query, and of its result, as they meet the cache."""
    if attention.kind == "latent":
        return (attention.kv_rank or 0) + (attention.rope_dim or 0), attention.kv_rank or 0
    return attention.head_dim, attention.v_head_dim


def logits(sending: Sending, held: Stage, step: Step, broadcast: bool) -> Iterator[Sent]:
    """The vocabulary's logits of each sequence, gathered over tp; then what the other stages need: the chosen token (a
    message), or all logits with `broadcast`, as the reference runtime does it."""
    tp, pp = Group(sending.layout.tp), Group(sending.layout.pp, sending.layout.tp)
    size = step.sequences * step.scored * sending.model.vocab_size * LOGIT_ITEM
    over = fabric(sending.cluster, "all_gather")
    yield Sent(all_gather(over, tp, size).times(held.last), held.last * (tp.size > 1), over.calls(tp))
    over = fabric(sending.cluster, "point_to_point")
    told = spread(over, pp, size if broadcast else 0.0)
    yield Sent(told.times(held.last), held.last * (pp.size > 1), over.calls(pp))
