"""How weights are cut over the ranks of a layout, and how many bytes of them one rank holds.

A pipeline stage is the range of decoder layers that it holds. Cuts that do not come out even are rounded up, so the
figures are those of the fullest rank. Of many layouts they are arrays, with one number for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from dayzero.arrays import Value, largest, share, smallest
from dayzero.schema import Attention, Engine, Layout, ModelSpec, WeightFamily

from .many import Layouts, Ranges, of_stage

TOWERS = ("vision", "audio", "projector")
"""First words of the roles of families that turn other inputs into embeddings."""
FIRST = ("embedding", *TOWERS)
"""First words of the roles that belong to the first pipeline stage."""
LAST = ("head", "norm")
"""First words of the roles that belong to the last pipeline stage, if the family is in no layer."""
UNUSED = "unused"
"""First word of the roles of families that are in the files but that no engine loads."""


def is_tower(family: WeightFamily) -> bool:
    """Whether the family belongs to a vision or audio tower, or to what joins it to the language model."""
    return family.role.split(".")[0] in TOWERS


def is_mtp(family: WeightFamily, model: ModelSpec) -> bool:
    """Whether the family belongs to a multi-token-prediction layer, which comes after the last decoder layer."""
    if family.role.split(".")[0] == "mtp":
        return True
    return bool(family.layers) and not is_tower(family) and family.layers[0] >= len(model.layers)


def is_expert(family: WeightFamily) -> bool:
    """Whether the family belongs to routed experts."""
    return family.experts > 0


def attention_of(family: WeightFamily, model: ModelSpec) -> Attention | None:
    """The kind of attention of the first layer that has the family; None if it is in no decoder layer."""
    for index in family.layers:
        if index < len(model.layers):
            return model.attentions[model.layers[index].attention]
    return next(iter(model.attentions.values()), None) if is_mtp(family, model) else None


def ways(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts) -> Value:
    """In how many parts one tensor of the family is cut. Towers count as whole here, see `rank_bytes`."""
    if family.axis is None or is_tower(family):
        return 1
    if is_expert(family):
        return layout.expert_tp
    if family.split == "heads":
        return layout.attention_degree
    if family.split == "kv_heads":
        attention = attention_of(family, model)
        most = attention.kv_heads if attention else layout.attention_degree
        return largest(1, smallest(layout.attention_degree, most))
    return layout.tp if family.split in ("width", "shared_width", "vocab") else 1


def experts_per_rank(family: WeightFamily, layout: Layout | Layouts) -> Value:
    """Routed experts of one layer that one rank holds, or holds a part of."""
    return -(-family.experts // layout.ep)


def _units(family: WeightFamily, model: ModelSpec, extent: int) -> int:
    """Indivisible parts along the axis that is cut: whole heads, or single rows."""
    attention = attention_of(family, model) if family.split in ("heads", "kv_heads") else None
    if attention is None:
        return extent
    units = attention.heads if family.split == "heads" else attention.kv_heads
    return units if units and extent % units == 0 else extent


def local_extent(family: WeightFamily, model: ModelSpec, parts: Value) -> tuple[Value, int]:
    """(rows that the fullest rank holds, rows of the whole tensor) along the axis that is cut; (1, 1) if none is."""
    if family.axis is None:
        return 1, 1
    extent = family.shape[family.axis]
    units = _units(family, model, extent)
    return -(-units // parts) * (extent // units), extent


def layers_here(family: WeightFamily, model: ModelSpec, layers: range) -> tuple[int, int]:
    """(layers of the family that the stage holds, layers that have it); a family outside of layers counts as one."""
    last = layers.stop >= len(model.layers)
    total = len(family.layers) or 1
    word = family.role.split(".")[0]
    if is_mtp(family, model):
        return (total if last else 0), total
    if word in FIRST:
        tied = family.role == "embedding" and model.tied_embeddings
        return (total if layers.start == 0 or (tied and last) else 0), total
    if word in LAST and not family.layers:
        return (total if last else 0), total
    if not family.layers:
        return 1, 1
    return bisect_left(family.layers, layers.stop) - bisect_left(family.layers, layers.start), total


def cut(family: WeightFamily, model: ModelSpec) -> tuple[object, ...]:
    """What decides which part of a family outside of towers a rank holds: of families that have the same in this, it is
    the same part."""
    loaded = family.role.split(".")[0] != UNUSED
    if family.axis is None:
        return family.experts, loaded
    attention = attention_of(family, model) if family.split == "kv_heads" else None
    units = _units(family, model, family.shape[family.axis])
    return family.experts, family.split, units, attention.kv_heads if attention else 0, loaded


def rank_part(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, engine: Engine
              ) -> tuple[Value, Value]:
    """(part, of what): the part of the family's tensors in the layers of its stage that the fullest rank holds."""
    unread = is_mtp(family, model) and engine.facts.speculative != "mtp"
    if unread or family.role.split(".")[0] == UNUSED:
        return 0, 1
    if is_tower(family):
        return 1, layout.tp if engine.vision == "split" else 1
    local, extent = local_extent(family, model, ways(family, model, layout))
    if is_expert(family):
        local, extent = local * experts_per_rank(family, layout), extent * family.experts
    return local, extent


def _held(whole: int, family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, engine: Engine,
          layers: range | Ranges) -> Value:
    """The part of `whole`, a total over all tensors of the family, that one rank of the stage holds; rounded up."""
    here, total = of_stage(layers, lambda one: layers_here(family, model, one)[0]), len(family.layers) or 1
    part, of = rank_part(family, model, layout, engine)
    return share(whole, here * part, total * of)


def rank_bytes(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, engine: Engine,
               layers: range | Ranges) -> Value:
    """Bytes of the family on one rank of the stage that holds `layers`.

    Multi-token-prediction layers are only loaded by an engine that speculates with them; towers are whole on every rank
    of the first stage unless the engine splits them.
    """
    return _held(family.stored_bytes, family, model, layout, engine, layers)


def rank_parameters(family: WeightFamily, model: ModelSpec, layout: Layout | Layouts, engine: Engine,
                    layers: range | Ranges) -> Value:
    """Logical parameters of the family on one rank of the stage that holds `layers`, by the rules of `rank_bytes`."""
    return _held(family.parameters, family, model, layout, engine, layers)


def stage_bytes(model: ModelSpec, layout: Layout | Layouts, engine: Engine, layers: range | Ranges,
                families: Iterable[WeightFamily] | None = None) -> Value:
    """Bytes of all (or the given) families on one rank of the stage that holds `layers`."""
    chosen = model.families if families is None else families
    return sum(rank_bytes(family, model, layout, engine, layers) for family in chosen)
