"""The operators of a decoder as facts give them: what multiplies with each weight family, what mixes tokens, what lies
between products. The planner puts the numbers of a step in; a graph without code puts names in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from dayzero.arrays import Value
from dayzero.ops import attention_axes, indexer_axes, latent_axes, linear_axes, merged_axes
from dayzero.schema import Attention, FeedForward, ModelSpec, WeightFamily

from .split import is_expert, is_mtp, is_tower

Product = Literal["rows", "experts", "head", ""]
"""Which rows meet a family: all tokens, those that are routed to an expert, those that need logits; none."""


class Operator(NamedTuple):
    """An operator and the lengths of its axes."""

    op: str
    """Name in the registry of operators."""
    variant: str
    """Which one; empty: there is one only."""
    axes: Mapping[str, float]
    """Axis of the definition -> length."""
    times: int = 1
    """How often a layer runs it."""


def takes_part(family: WeightFamily, model: ModelSpec) -> bool:
    """Whether a pass over text uses the family: towers and multi-token prediction take no part."""
    return not is_tower(family) and not is_mtp(family, model)


def routing_block(family: WeightFamily, model: ModelSpec) -> FeedForward | None:
    """The block that routes tokens over the experts: that of the family's first layer or, for tensors whose names have
    no layer number, the first one with as many experts. None: nothing is known to route."""
    blocks = [model.feed_forwards[model.layers[index].feed_forward] for index in family.layers[:1]]
    return next((block for block in blocks or model.feed_forwards.values()
                 if block.experts and (blocks or block.experts == family.experts)), None)


def product(family: WeightFamily, model: ModelSpec) -> Product:
    """Which rows are multiplied with the family. An embedding is looked up, and multiplied only where it is the output
    head as well; experts that nothing is known to route to are used by every token."""
    kind = family.role.split(".")[0]
    if not takes_part(family, model) or (kind == "embedding" and not model.tied_embeddings):
        return ""
    if is_expert(family) and routing_block(family, model) is not None:
        return "experts"
    return "head" if kind in ("embedding", "head") else "rows"


def mixing(attention: Attention, sequences: Value, tokens: float, context: Value, item: float,
           absorbed: bool | None = None) -> Operator:
    """How a layer of that kind mixes tokens once, all its heads. `absorbed`: how latent attention is computed, see its
    operator; other arguments as in the axes."""
    if attention.kind == "linear":
        return Operator("linear_attention", "", linear_axes(attention, sequences, tokens, item))
    if attention.merged > 1:
        return Operator("merged_attention", "sparse" if attention.index_top_k else "",
                        merged_axes(attention, sequences, tokens, context, item))
    if attention.kind == "latent" and not attention.is_entry_head:
        return Operator("latent_attention", "", latent_axes(attention, sequences, tokens, context, item, absorbed))
    return Operator("attention", attention.kind, attention_axes(attention, sequences, tokens, context, item))


def choosing(model: ModelSpec, kind: str, sequences: Value, tokens: float, context: Value) -> tuple[Operator, float]:
    """How an indexer chooses what queries look at, and the share of the layers with that kind of attention that have
    one of their own: others take the choice of a layer before them, or look at all."""
    attention = model.attentions[kind]
    own = {index for family in model.families if family.role.startswith("indexer") for index in family.layers}
    layers = {index for index, layer in enumerate(model.layers) if layer.attention == kind}
    share = len(own & layers) / len(layers) if attention.index_heads else 0.0
    return Operator("indexer", "", indexer_axes(attention, sequences, tokens, context)), share


def norm(rows: float, width: float, item: float, weight_item: float = 0) -> Operator:
    """A norm over `width` values of each of `rows` rows."""
    return Operator("norm", "rms", {"tokens": rows, "hidden": width, "item": item, "weight_item": weight_item})


def residual(rows: float, hidden: float, item: float) -> Operator:
    """The addition of what a block gives to the residual stream."""
    return Operator("elementwise", "residual", {"elements": rows * hidden, "operands": 2, "operations": 1,
                                                "item": item})


def activation(rows: float, width: float, item: float) -> Operator:
    """A gated activation: five operations for two values."""
    return Operator("elementwise", "activation", {"elements": rows * width, "operands": 2, "operations": 5,
                                                  "item": item})


def looked_up(rows: float, hidden: float, item: float) -> Operator:
    """The rows of an embedding."""
    return Operator("embedding", "", {"tokens": rows, "hidden": hidden, "item": item})
