"""What one rank of a pipeline stage computes and moves in one step: flops and bytes for each kind of operator."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Literal

import msgspec

from dayzero.ops import OPERATORS, distinct_experts
from dayzero.placement.memory import attention_sequences, value_bytes
from dayzero.placement.operators import activation, looked_up, mixing, norm, product, residual, routing_block
from dayzero.placement.split import rank_bytes, rank_parameters
from dayzero.schema import Attention, FeedForward, Layout, ModelSpec, Noun, Target, WeightFamily

CACHE = "attention over cache"
"""Kind of the operators that read caches and states; the other kinds are the first words of weight families' roles."""
POINTWISE = "norms and pointwise"
"""Kind of the operators between matrix products."""


class Step(Noun, frozen=True, kw_only=True):
    """One forward pass, or `passes` equal ones, of one replica."""

    phase: Literal["prefill", "decode"]
    """Which phase it is."""
    sequences: float
    """Sequences of the replica that take part."""
    tokens: float
    """New tokens of each, in one pass."""
    context: float
    """Tokens of each already in the cache, averaged over the passes."""
    passes: int = 1
    """Forward passes, such as the chunks of a long prompt."""

    @property
    def rows(self) -> float:
        """Tokens that one pass of the replica handles."""
        return self.sequences * self.tokens


class Work(Noun, frozen=True, kw_only=True):
    """Operators of one kind and scheme, all passes together, on one rank."""

    kind: str
    """What an engineer calls it."""
    scheme: str
    """Scheme whose matrix rate bounds it."""
    flops: float
    """Operations."""
    bytes: float
    """Bytes read and written."""


def prefill_step(target: Target, sequences: float = 1) -> Step:
    """The prompt of the workload, in as few equal chunks as `max_batched_tokens` allows."""
    tokens, most = target.workload.input_tokens, target.workload.max_batched_tokens
    passes = max(1, ceil(tokens / most))
    chunk = tokens / passes
    return Step(phase="prefill", sequences=sequences, tokens=chunk, context=chunk * (passes - 1) / 2, passes=passes)


def decode_step(target: Target, sequences: float) -> Step:
    """One further token for each sequence, half way through the output."""
    workload = target.workload
    return Step(phase="decode", sequences=sequences, tokens=1,
                context=workload.input_tokens + workload.output_tokens / 2)


def expert_rows(layout: Layout, rows: float) -> float:
    """Tokens that are routed over one set of experts: those of all replicas that the expert groups span."""
    return rows * max(1.0, layout.ep / layout.tp)


def _family_work(family: WeightFamily, model: ModelSpec, layout: Layout, target: Target, layers: range,
                 step: Step) -> tuple[float, float]:
    """(flops, bytes) of the products with one family's weights, as the `linear` and `experts` operators count them:
    two operations for each weight and token; each weight that is used is read once a pass. The rows that go in and
    come out are counted with the pointwise operators that make them. Experts that nothing is known to route to are all
    used by every token."""
    parameters = rank_parameters(family, model, layout, target.engine, layers)
    stored = rank_bytes(family, model, layout, target.engine, layers)
    rows = step.rows
    kind = product(family, model)
    block = routing_block(family, model) if kind == "experts" else None
    if block is not None:
        together = expert_rows(layout, rows)
        visited = distinct_experts(block.choices, block.top_k, together) / block.choices
        return (2 * parameters * together * block.top_k / block.choices * step.passes, stored * visited * step.passes)
    if kind == "head":
        return 2 * parameters * step.sequences, float(stored)  # only the last token of each sequence needs logits
    if family.split in ("heads", "kv_heads"):
        rows = attention_sequences(layout, step.sequences) * step.tokens
    return 2 * parameters * rows * step.passes, float(stored * step.passes)


def weight_work(model: ModelSpec, layout: Layout, target: Target, layers: range, step: Step) -> list[Work]:
    """The products with weights, by role and scheme."""
    totals: dict[tuple[str, str], list[float]] = {}
    for family in model.families:
        kind = family.role.split(".")[0]
        if not product(family, model) or (kind == "embedding" and layers.stop < len(model.layers)):
            continue
        flops, moved = _family_work(family, model, layout, target, layers, step)
        if moved:
            total = totals.setdefault((family.role, family.scheme), [0.0, 0.0])
            total[0] += flops
            total[1] += moved
    return [Work(kind=role.split(".")[0], scheme=scheme, flops=flops, bytes=moved)
            for (role, scheme), (flops, moved) in totals.items()]


def _share(attention: Attention, degree: int) -> Attention:
    """The heads that one of `degree` ranks computes."""
    return msgspec.structs.replace(attention, heads=ceil(attention.heads / degree),
                                   kv_heads=max(1, ceil(attention.kv_heads / degree)))


def cache_work(model: ModelSpec, layout: Layout, layers: range, step: Step, absorbed: bool | None = None) -> list[Work]:
    """Attention over caches and states, one entry for each kind of attention on the stage. `absorbed`: how latent
    attention is computed, see its operator."""
    sequences, item = attention_sequences(layout, step.sequences), value_bytes(model)
    work = []
    for name, count in Counter(model.layers[index].attention for index in layers).items():
        local = _share(model.attentions[name], layout.attention_degree)
        op, _, axes, _ = mixing(local, sequences, step.tokens, step.context, item, absorbed)
        definition = OPERATORS.get(op)
        times = count * step.passes
        work.append(Work(kind=CACHE, scheme=model.dtype, flops=times * definition.flops(axes),
                         bytes=times * definition.bytes(axes)))
    return work


def _inner_width(block: FeedForward, layout: Layout) -> float:
    """Inner values of a feed-forward block for each token of the replica, on one rank of a balanced batch."""
    if block.kind == "dense":
        return block.width / layout.tp
    routed = block.visited * block.width * max(1.0, layout.ep / layout.tp) / (layout.ep * layout.expert_tp)
    return routed + block.shared_width / layout.tp


def pointwise_work(model: ModelSpec, layout: Layout, layers: range, step: Step) -> Work:
    """Two norms, two residual additions and the gated activation of each layer, and the embedding's rows."""
    item, rows, hidden = value_bytes(model), step.rows * step.passes, model.hidden_size
    flops = moved = 0.0
    for name, count in Counter(model.layers[index].feed_forward for index in layers).items():
        inner = activation(rows, _inner_width(model.feed_forwards[name], layout), item)
        for operator, times in ((norm(rows, hidden, item), 2), (residual(rows, hidden, item), 2), (inner, 1)):
            definition = OPERATORS.get(operator.op)
            flops += count * times * definition.flops(operator.axes)
            moved += count * times * definition.bytes(operator.axes)
    if layers.start == 0:
        moved += OPERATORS.get("embedding").bytes(looked_up(rows, hidden, item).axes)
    return Work(kind=POINTWISE, scheme="f32", flops=flops, bytes=moved)


def stage_work(model: ModelSpec, layout: Layout, target: Target, layers: range, step: Step) -> list[Work]:
    """All that one rank of the stage that holds `layers` does in the step, without communication. The reference
    runtime, which runs on measured devices, expands a latent cache also in decode."""
    absorbed = False if target.cluster.device.measured else None
    return [*weight_work(model, layout, target, layers, step), *cache_work(model, layout, layers, step, absorbed),
            pointwise_work(model, layout, layers, step)]
