"""What one rank of a pipeline stage computes and moves in one step: flops and bytes for each kind of operator.

For a stage and a layout they are numbers; for several stages of many layouts arrays of shape [stages, layouts].
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal

import msgspec
import numpy as np

from dayzero.arrays import Value, largest, smallest
from dayzero.ops import OPERATORS, distinct_experts
from dayzero.placement.many import Layouts
from dayzero.placement.memory import attention_sequences, value_bytes
from dayzero.placement.operators import (
    activation,
    choosing,
    looked_up,
    mixing,
    norm,
    product,
    residual,
    routing_block,
)
from dayzero.placement.split import cut, rank_part
from dayzero.schema import Attention, FeedForward, Layout, ModelSpec, Noun, Target, WeightFamily

from .stage import Stage

CACHE = "attention over cache"
"""Kind of the operators that read caches and states; the other kinds are the first words of weight families' roles."""
POINTWISE = "norms and pointwise"
"""Kind of the operators between matrix products."""
_GROUPS = {"latent": "latent", "linear": "state"}
"""Kinds of attention whose operators are a class of their own."""


class Step(Noun, frozen=True, kw_only=True):
    """One forward pass, or `passes` equal ones, of one replica."""

    phase: Literal["prefill", "decode"]
    """Which phase it is."""
    sequences: Value
    """Sequences of the replica that take part."""
    tokens: float
    """New tokens of each, in one pass."""
    context: Value
    """Tokens of each already in the cache, averaged over the passes."""
    passes: float = 1
    """Forward passes, such as the chunks of a long prompt."""
    scored: int = 1
    """Tokens of each that need logits."""
    imbalance: float = 1.0
    """Tokens of the rank whose experts have most, in terms of the mean."""

    @property
    def rows(self) -> Value:
        """Tokens that one pass of the replica handles."""
        return self.sequences * self.tokens


class Work(Noun, frozen=True, kw_only=True):
    """Operators of one kind and scheme, all passes together, on one rank."""

    kind: str
    """What an engineer calls it."""
    group: str
    """Class of operators that reach alike shares of the rates: linear, expert, cache, latent, state or pointwise."""
    scheme: str
    """Scheme whose matrix rate bounds it."""
    flops: Value
    """Operations."""
    bytes: Value
    """Bytes read and written."""


def prefill_step(target: Target, sequences: Value = 1, *, filled: bool = False) -> Step:
    """What has to be computed of the workload's prompt, in as few equal chunks as `max_batched_tokens` allows.
    `filled`: in chunks of that size, the last of which the next prompt fills, where prompts follow one another."""
    tokens, most = target.workload.computed_tokens, target.workload.max_batched_tokens
    passes = max(1.0, tokens / most) if filled else max(1, ceil(tokens / most))
    chunk = tokens / passes
    return Step(phase="prefill", sequences=sequences, tokens=chunk, passes=passes,
                context=target.workload.shared_tokens + chunk * (passes - 1) / 2,
                imbalance=target.workload.expert_imbalance)


def decode_step(target: Target, sequences: Value) -> Step:
    """One pass for each sequence, half way through the output: over one token, and those that were proposed."""
    workload = target.workload
    return Step(phase="decode", sequences=sequences, tokens=1 + workload.draft_tokens,
                context=workload.input_tokens + workload.output_tokens / 2, scored=1 + workload.draft_tokens,
                imbalance=workload.expert_imbalance)


def expert_rows(layout: Layout | Layouts, rows: Value) -> Value:
    """Tokens that are routed over one set of experts: those of all replicas that the expert groups span."""
    return rows * largest(1.0, layout.ep / layout.tp)


def _family_work(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, target: Target, step: Step
                 ) -> tuple[Value, Value]:
    """(flops, bytes) of the products with one family's weights, were all its layers in one stage, as the `linear` and
    `experts` operators count them: two operations for each weight and token; each weight that is used is read once a
    pass. The rows that go in and come out are counted with the pointwise operators that make them. Experts that
    nothing is known to route to are all used by every token."""
    part, of = rank_part(family, model, layout, target.engine)
    parameters, stored, rows = family.parameters * (part / of), family.stored_bytes * (part / of), step.rows
    kind = product(family, model)
    block = routing_block(family, model) if kind == "experts" else None
    if block is not None:
        together = expert_rows(layout, rows)
        visited = distinct_experts(block.choices, block.top_k, together) / block.choices
        fullest = smallest(step.imbalance, layout.ep)  # no rank has more than all tokens
        return (2 * parameters * together * block.top_k / block.choices * step.passes * fullest,
                stored * visited * step.passes)
    if kind == "head":
        return 2 * parameters * step.sequences * step.scored, stored  # of a prompt only the last token needs logits
    if family.split in ("heads", "kv_heads"):
        rows = attention_sequences(layout, step.sequences) * step.tokens
    return 2 * parameters * rows * step.passes, stored * step.passes


def weight_work(model: ModelSpec, layout: Layout | Layouts, target: Target, stage: Stage, step: Step, *,
                by_role: bool = True) -> list[Work]:
    """The products with weights, by role and scheme; not `by_role`: by class of operators and scheme."""
    totals: dict[tuple[str, str], list[Value]] = {}
    for family, share in _together(model, stage, by_role):
        total = totals.setdefault((family.role if by_role else _group(family), family.scheme), [0.0, 0.0])
        for place, amount in enumerate(_family_work(family, model, layout, target, step)):
            total[place] = total[place] + share * amount
    return [Work(kind=role.split(".")[0], group="expert" if role.startswith("expert") else "linear", scheme=scheme,
                 flops=flops, bytes=moved)
            for (role, scheme), (flops, moved) in totals.items() if np.any(moved)]


def _group(family: WeightFamily) -> str:
    return "expert" if family.role.split(".")[0] == "experts" else "linear"


def _together(model: ModelSpec, stage: Stage, by_role: bool) -> Iterator[tuple[WeightFamily, Value]]:
    """Families that are multiplied, and their share in the stage: those that are cut alike as one."""
    groups: dict[tuple[object, ...], list[WeightFamily]] = {}
    shares: dict[tuple[object, ...], Value] = {}
    for family, held in zip(model.families, stage.families, strict=True):
        kind, word = product(family, model), family.role.split(".")[0]
        if kind:
            key = (kind, family.role if by_role or not family.layers else _group(family), family.scheme, family.layers,
                   family.split in ("heads", "kv_heads"), *cut(family, model))
            groups.setdefault(key, []).append(family)
            shares[key] = held * stage.last if word == "embedding" else held
    for key, (first, *others) in groups.items():
        sums = {name: sum(getattr(one, name) for one in (first, *others)) for name in ("parameters", "stored_bytes")}
        yield msgspec.structs.replace(first, **sums) if others else first, shares[key]


def _local(attention: Attention, layout: Layout | Layouts, decodes: bool) -> Attention:
    """The heads that one rank computes. While decoding, ranks that share a sequence's tokens each compute the heads of
    all of them, on their own tokens."""
    together = layout.cp if decodes and attention.kind != "linear" else 1
    degree = layout.attention_degree
    return msgspec.structs.replace(attention, heads=-(-attention.heads // degree) * together,
                                   kv_heads=largest(1, -(-attention.kv_heads // largest(1, degree // together))))


def cache_work(model: ModelSpec, layout: Layout | Layouts, stage: Stage, step: Step, absorbed: bool | None = None
               ) -> list[Work]:
    """Attention over caches and states and the choice of what it looks at, one entry for each kind of attention.
    `absorbed`: how latent attention is computed, see its operator."""
    sequences, item = attention_sequences(layout, step.sequences), value_bytes(model)
    decodes = step.phase == "decode"
    context = step.context / layout.cp if decodes else step.context
    work = []
    for name, layers in stage.attentions.items():
        if not np.any(layers):
            continue
        attention = model.attentions[name]
        parts = ((mixing(_local(attention, layout, decodes), sequences, step.tokens, context, item, absorbed), 1.0),
                 choosing(model, name, sequences, step.tokens, context))
        times = layers * step.passes * attention.times
        work.append(Work(kind=CACHE, group=_GROUPS.get(attention.kind, "cache"), scheme=model.dtype,
                         flops=times * sum(share * OPERATORS.get(part.op).flops(part.axes) for part, share in parts),
                         bytes=times * sum(share * OPERATORS.get(part.op).bytes(part.axes) for part, share in parts)))
    return work


def _inner_width(block: FeedForward, layout: Layout | Layouts) -> Value:
    """Inner values of a feed-forward block for each token of the replica, on one rank of a balanced batch."""
    if block.kind == "dense":
        return block.width / layout.tp
    routed = block.visited * block.width * largest(1.0, layout.ep / layout.tp) / (layout.ep * layout.expert_tp)
    return routed + block.shared_width / layout.tp


def pointwise_work(model: ModelSpec, layout: Layout | Layouts, stage: Stage, step: Step) -> Work:
    """Two norms, two residual additions and the gated activation of each layer, and the embedding's rows."""
    item, rows, hidden = value_bytes(model), step.rows * step.passes, model.hidden_size
    flops: Value = 0.0
    moved: Value = stage.first * OPERATORS.get("embedding").bytes(looked_up(rows, hidden, item).axes)
    for name, layers in stage.blocks.items():
        inner = activation(rows, _inner_width(model.feed_forwards[name], layout), item)
        for operator, times in ((norm(rows, hidden, item), 2), (residual(rows, hidden, item), 2), (inner, 1)):
            definition = OPERATORS.get(operator.op)
            flops = flops + layers * times * definition.flops(operator.axes)
            moved = moved + layers * times * definition.bytes(operator.axes)
    return Work(kind=POINTWISE, group="pointwise", scheme="f32", flops=flops, bytes=moved)


def stage_work(model: ModelSpec, layout: Layout | Layouts, target: Target, stage: Stage, step: Step, *,
               by_role: bool = True) -> list[Work]:
    """All that one rank of the stage does in the step, without communication. The reference runtime, which runs on
    measured devices, expands a latent cache also in decode."""
    absorbed = False if target.cluster.device.measured else True if step.phase == "decode" else None
    return [*weight_work(model, layout, target, stage, step, by_role=by_role),
            *cache_work(model, layout, stage, step, absorbed),
            pointwise_work(model, layout, stage, step)]
