"""Weights as an engine holds them: those of the files, and what it makes of them."""

from __future__ import annotations

from functools import partial

from dayzero.arrays import Value, ceiling, choose, floor, largest
from dayzero.schema import Engine, Layout, ModelSpec, WeightFamily
from dayzero.schema.allocation import Allocation

from .many import Layouts, Ranges, of_stage
from .sequence import value_bytes
from .split import attention_of, layers_here, rank_bytes, ways

_WIDE = 2
"""Bytes of a value of 16 bits."""


PADDED, COPIED, TABLE = "padding of kernels", "absorbed projections", "rotary table"
"""What an engine adds to the weights of the files."""


def held_bytes(model: ModelSpec, layout: Layout | Layouts, engine: Engine, allocation: Allocation | None,
               layers: range | Ranges, arch: str = "") -> Value:
    """Bytes of weights on one rank as the engine holds them, see `weight_bytes`."""
    return sum(weight_bytes(model, layout, engine, allocation, layers, arch).values())


def weight_bytes(model: ModelSpec, layout: Layout | Layouts, engine: Engine, allocation: Allocation | None,
                 layers: range | Ranges, arch: str = "") -> dict[str, Value]:
    """Bytes of weights on one rank by what they belong to (attention, experts, embedding ...): those of the files, and
    what the engine adds: what its kernels pad, copies of the up projections of a latent attention, and the table of
    rotary positions. `arch`: of the devices. Without rules of an engine: those of the files."""
    held = dict[str, Value]()
    for family in model.families:
        part = family.role.split(".")[0]
        held[part] = held.get(part, 0) + rank_bytes(family, model, layout, engine, layers)
    if allocation:
        held |= {PADDED: _padded(model, layout, engine, allocation, layers, arch),
                 COPIED: _absorbed(model, layout, allocation, layers), TABLE: _table(model, allocation)}
    return held


def rounding_bytes(model: ModelSpec, layout: Layout | Layouts, engine: Engine, allocation: Allocation | None,
                   layers: range | Ranges) -> Value:
    """Bytes that an allocator asks of the device beyond what the weights need: a layer's share of a family is one
    tensor, its experts together."""
    added: Value = 0
    if allocation is None or allocation.rounding is None:
        return added
    large, step = allocation.rounding.large_bytes, allocation.rounding.step_bytes
    for family in model.families:
        if family.stored_bytes < large * (len(family.layers) or 1):
            continue
        count = of_stage(layers, partial(_tensors, family, model))
        each = floor(rank_bytes(family, model, layout, engine, layers) / largest(1, count))
        added += choose(each >= large, count * (ceiling(each / step) * step - each), 0)
    return added


def _tensors(family: WeightFamily, model: ModelSpec, layers: range) -> int:
    return layers_here(family, model, layers)[0]


def _padded(model: ModelSpec, layout: Layout | Layouts, engine: Engine, allocation: Allocation,
            layers: range | Ranges, arch: str) -> Value:
    """Bytes that kernels of a scheme add to routed experts."""
    added: Value = 0
    blocks = {block.width for block in model.feed_forwards.values() if block.experts}
    for family in model.families:
        padding = allocation.padding.get(f"{family.scheme}@{arch}") or allocation.padding.get(family.scheme)
        if padding and family.experts and len(blocks) == 1:
            width = -(-max(blocks) // layout.expert_tp)
            hidden = next(block.input_width for block in model.feed_forwards.values() if block.experts)
            grown = _up(width, padding.width) / width * _up(hidden, padding.hidden) / hidden
            added += floor(rank_bytes(family, model, layout, engine, layers) * (grown - 1))
    return added


def _up(value: Value, multiple: int) -> Value:
    return -(-value // multiple) * multiple


def _absorbed(model: ModelSpec, layout: Layout | Layouts, allocation: Allocation, layers: range | Ranges) -> Value:
    """Copies in 16 bits of the projections from a latent to all heads."""
    if not (allocation.absorbs and allocation.latent_cache):
        return 0
    return sum(_copied(family, model, layout, layers) for family in model.families
               if family.role == "attention.kv_up" and family.scheme)


def _copied(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, layers: range | Ranges) -> Value:
    attention = attention_of(family, model)
    if attention is None or attention.kind != "latent" or not family.parameters:
        return 0
    here = of_stage(layers, lambda one: sum(index in one for index in family.layers))
    return family.parameters * here // max(1, len(family.layers)) * _WIDE // ways(family, model, layout)


def _table(model: ModelSpec, allocation: Allocation) -> int:
    """Sines and cosines of all positions, once for each way to rotate."""
    if not allocation.rope_table or not model.max_positions:
        return 0
    rotated = {(model.attentions[name].rope_dim or int(model.attentions[name].head_dim * (rope.share or 1)), rope.base)
               for name, rope in model.ropes.items() if name in model.attentions}
    return sum(width * model.max_positions * value_bytes(model) for width, _ in rotated)
