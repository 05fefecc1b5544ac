"""The operators of a pass with the shapes that one rank runs: what measured tables are asked for.

`work` counts flops and bytes of whole families; here each product with weights is one call with its rows and widths, as
engines run it: what has one input is one product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dayzero.arrays import Value, ceiling, choose, largest
from dayzero.data.measured.grid import UNLIMITED
from dayzero.data.measured.mapping import mapping
from dayzero.ops import OPERATORS
from dayzero.placement.many import Layouts
from dayzero.placement.memory import attention_sequences, value_bytes
from dayzero.placement.operators import mixing, product
from dayzero.placement.split import is_expert, local_extent, ways
from dayzero.schema import Attention, Layout, ModelSpec, Target, WeightFamily

from .stage import Stage
from .work import Step, expert_rows

CLASSES = {"latent": ("latent", "latent_attention"), "linear": ("state", "linear_attention")}
"""Kind of attention -> (class of operators, operator); of others cache and attention."""
GATED = 3
"""Matrices of an expert: gate, up and down."""


@dataclass(frozen=True)
class Call:
    """An operator that a rank runs in a pass, or several equal ones."""

    kind: str
    """Class of operators: linear, expert, cache, latent, state; or collective."""
    name: str
    """What it is in the model."""
    operator: str
    """As measured tables call it."""
    keys: dict[str, str]
    """What has to be equal in a table."""
    axes: dict[str, Value]
    """Lengths."""
    times: Value
    """How often in the pass."""
    scheme: str
    """Of its weights, or of what it computes in."""
    phase: str
    """prefill or decode."""
    weight_item: float = 2.0
    """Bytes of a stored weight."""


def calls(model: ModelSpec, layout: Layout | Layouts, target: Target, held: Stage, step: Step, cache: str = "bf16"
          ) -> Iterator[Call]:
    """Those of one rank of a pipeline stage, or of several stages of many layouts. `cache`: precision of cached
    values."""
    yield from _products(model, layout, held, step)
    yield from _experts(model, layout, held, step)
    yield from _mixing(model, layout, held, step, cache)
    yield from _collectives(model, layout, target, held, step)


def _products(model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step) -> Iterator[Call]:
    """Products with weights outside of experts, those with one input together."""
    together: dict[tuple[Any, ...], list[tuple[WeightFamily, Value]]] = {}
    for family, share in zip(model.families, held.families, strict=True):
        if family.parameters and len(family.shape) == 2 and product(family, model) in ("rows", "head") and (
                not is_expert(family)):
            group = next((i for i, roles in enumerate(mapping().fused) if family.role in roles), family.pattern)
            together.setdefault((group, family.layers, family.scheme, _inner(family)), []).append((family, share))
    for families in together.values():
        (first, share), head = families[0], product(families[0][0], model) == "head"
        rows: Value = step.sequences * step.scored if head else step.rows
        if first.split in ("heads", "kv_heads"):
            rows = attention_sequences(layout, step.sequences) * step.tokens
        times = share * held.last if head else share * (len(first.layers) or 1) * step.passes
        stored = sum(one.stored_bytes for one, _ in families) / sum(one.parameters for one, _ in families)
        yield Call(kind="linear", name="+".join(one.role for one, _ in families), operator="linear",
                   keys={"scheme": _scheme(first, model)}, times=times, scheme=first.scheme, weight_item=stored,
                   phase=step.phase,
                   axes={"tokens": rows, "outer": sum(_cut(one, model, layout)[0] for one, _ in families),
                         "inner": _cut(first, model, layout)[1]})


def _inner(family: WeightFamily) -> float:
    """Logical width that a product sums over."""
    return family.parameters / family.count / family.shape[0]


def _cut(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts) -> tuple[Value, Value]:
    """(outer, inner) widths of a rank's part."""
    local, whole = local_extent(family, model, ways(family, model, layout))
    share = local / whole
    return family.shape[0] * (share if family.axis == 0 else 1), _inner(family) * (share if family.axis == 1 else 1)


def _scheme(family: WeightFamily, model: ModelSpec) -> str:
    """As tables call it: they tell scales of blocks from those of rows or of the whole."""
    blocks = any(one.block > 1 for one in model.families if one.scheme == family.scheme)
    return f"{family.scheme}_block" if family.scheme == "fp8" and blocks else family.scheme


def _experts(model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step) -> Iterator[Call]:
    for name, layers in held.blocks.items():
        block = model.feed_forwards[name]
        family = max((one for one in model.families if is_expert(one) and one.experts == block.experts),
                     key=lambda one: one.parameters, default=None)
        if block.experts and family is not None:
            yield Call(kind="expert", name="experts", operator="experts", scheme=family.scheme, phase=step.phase,
                       keys={"scheme": _scheme(family, model), "routing": "uneven"}, times=layers * step.passes,
                       weight_item=family.stored_bytes / family.parameters,
                       axes={"tokens": expert_rows(layout, step.rows), "hidden": block.input_width,
                             "width": block.width, "top_k": block.visited, "experts": block.experts,
                             "expert_tp": layout.expert_tp, "ep": layout.ep})


def _mixing(model: ModelSpec, layout: Layout | Layouts, held: Stage, step: Step, cache: str) -> Iterator[Call]:
    """Attention and linear attention; what looks at chosen or merged entries was not measured in a form of its own."""
    sequences = attention_sequences(layout, step.sequences)
    for name, layers in held.attentions.items():
        attention = model.attentions[name]
        kind, operator = CLASSES.get(attention.kind, ("cache", "attention"))
        if attention.index_top_k or attention.merged > 1 or not attention.heads:
            continue
        axes = {"sequences": sequences, "tokens": step.tokens, "context": step.context,
                **_heads(attention, layout, operator)}
        keys: dict[str, str] = {"phase": step.phase} if kind == "state" else {"phase": step.phase, "cache": cache}
        yield Call(kind=kind, name=name, operator=operator, keys=keys, axes=axes, times=layers * step.passes,
                   scheme=model.dtype, phase=step.phase, weight_item=float(value_bytes(model)))


def _heads(attention: Attention, layout: Layout | Layouts, operator: str) -> dict[str, Value]:
    degree = layout.attention_degree
    made: dict[str, Value] = {"heads": ceiling(attention.heads / degree), "head_dim": attention.head_dim}
    if operator == "latent_attention":
        return {**made, "v_head_dim": attention.v_head_dim, "kv_rank": attention.kv_rank or 1,
                "rope_dim": attention.rope_dim or 1}
    made["kv_heads"] = largest(1, ceiling(attention.kv_heads / degree))
    if operator == "linear_attention":
        return {**made, "v_head_dim": attention.v_head_dim}
    return {**made, "window": float(attention.window) if attention.window else UNLIMITED}


def _collectives(model: ModelSpec, layout: Layout | Layouts, target: Target, held: Stage, step: Step
                 ) -> Iterator[Call]:
    """All-reduces of the residual stream, and dispatch and combine where experts lie over several replicas."""
    item, node = float(value_bytes(model)), target.cluster.devices_per_node
    own = attention_sequences(layout, step.sequences) / step.sequences
    whole = not np.any(layout.attention_degree < layout.tp)
    for ranks, share, count in ((layout.tp, 1.0, 2.0),) if whole else (
            (layout.tp, 1.0, 1.0), (layout.attention_degree, own, 1.0)):
        yield Call(kind="collective", name="all-reduce", operator="all_reduce", keys={}, scheme=model.dtype,
                   phase=step.phase,
                   axes={"ranks": ranks, "bytes": share * step.rows * model.hidden_size * item},
                   times=choose(ranks > 1, count, 0.0) * held.layers * step.passes)
    spread = choose(layout.ep > layout.tp, 1.0, 0.0)
    kernel = "low_latency" if step.phase == "decode" else "throughput"
    for name, layers in held.blocks.items():
        block = model.feed_forwards[name]
        for phase in ("dispatch", "combine") if block.experts and np.any(spread) else ():
            yield Call(kind="collective", name=phase, operator="expert_exchange", scheme=model.dtype, phase=step.phase,
                       keys={"phase": phase, "kernel": kernel}, times=spread * layers * step.passes,
                       axes={"ranks": layout.ep, "nodes": largest(1, ceiling(layout.ep * layout.pp / node)),
                             "hidden": block.input_width, "top_k": block.visited, "experts": block.experts,
                             "tokens": largest(1.0, step.rows / layout.tp)})


def work(call: Call, axes: Mapping[str, Value]) -> tuple[Value, Value]:
    """(flops, bytes) of one run with these lengths, by the definition of the operator; a collective has no flops."""
    item = call.weight_item if call.kind in ("cache", "latent", "state") else 2.0
    if call.operator == "all_reduce":
        return 0.0 * axes["bytes"], 2 * (axes["ranks"] - 1) / axes["ranks"] * axes["bytes"]
    if call.operator == "expert_exchange":
        sent = axes["tokens"] * axes["hidden"] * item * np.minimum(axes["top_k"], axes["ranks"])
        return 0.0 * sent, sent
    made = {**axes, "item": item, "weight_item": call.weight_item, "groups": 1}
    if call.operator == "experts":
        made |= {"experts": axes["experts"] / axes["ep"], "top_k": axes["top_k"] / axes["ep"], "matrices": GATED,
                 "width": axes["width"] / axes["expert_tp"]}
    elif call.operator != "linear":
        made |= _attention_axes(call, axes)
    definition = OPERATORS.get(call.operator)
    return definition.flops(made), definition.bytes(made)


def _attention_axes(call: Call, axes: Mapping[str, Value]) -> dict[str, Value]:
    """What the definitions need beside the axes of tables."""
    whole = Attention(kind={"latent_attention": "latent", "linear_attention": "linear"}.get(call.operator, "full"),
                      heads=1, kv_heads=1, head_dim=1, v_head_dim=1, kv_rank=1, rope_dim=1)
    made = dict(mixing(whole, 1, 2 if call.phase == "prefill" else 1, 0, 2).axes)
    made |= {name: _plain(value) for name, value in axes.items()}
    made["v_head_dim"] = made["v_head_dim"] if call.operator != "attention" else made["head_dim"]
    if call.operator == "latent_attention":
        made["latent_dim"] = made["kv_rank"] + made["rope_dim"]
    if call.operator == "attention":
        made["keys"] = np.minimum(made["context"], made["window"]) + made["tokens"]
    elif call.operator == "latent_attention":
        made["keys"] = made["context"] + made["tokens"]
    return made


def _plain(value: Value) -> Value:
    """A number where all of an array are one."""
    array = np.asarray(value, dtype=float)
    return float(array.flat[0]) if array.size and (array == array.flat[0]).all() else array


def spread_out(call: Call) -> Call:
    """With lengths as arrays of one size."""
    names = list(call.axes)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(call.axes[name], dtype=float)) for name in names))
    return replace(call, axes=dict(zip(names, columns, strict=True)))
