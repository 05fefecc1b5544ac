"""What multiplies with, looks up or normalises by weights: from the families' shapes and roles."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import prod

from dayzero.data.vocabulary import spellings
from dayzero.placement import operators
from dayzero.placement.memory import value_bytes
from dayzero.placement.split import is_expert
from dayzero.schema import Attention, ModelSpec
from dayzero.stages.trace.capture.expansion import EXPANSION

from .parts import ROUTER_ITEM, ROWS, Axes, Part, Weight, attention_of, for_all_rows, sides_of


def products(model: ModelSpec, weights: list[Weight]) -> Iterator[Part]:
    """What multiplies with, looks up or normalises by one weight."""
    item = value_bytes(model)
    for weight in weights:
        family, module = weight.family, weight.module
        if is_expert(family):
            continue
        if _is_norm(weight):
            yield from _norms(weight, model, item)
        elif weight.word == "embedding" and len(family.shape) == 2:
            hidden = family.shape[-1]
            yield for_all_rows(operators.looked_up(1, hidden, item), module, family.layers)
            if model.tied_embeddings and family.role == "embedding":
                yield Part("linear", "head", module, (), _linear(hidden, family.shape[0], item, weight.item))
        elif family.role == "linear.conv" and len(family.shape) > 1:
            channels, *inner, kernel = family.shape
            yield Part("convolution", "", module, family.layers, {
                "sequences": "batch", "tokens": "tokens", "channels": channels, "inner": prod(inner), "kernel": kernel,
                "item": item, "weight_item": weight.item})
        elif sides := sides_of(weight, model):
            part = _product(weight, sides, model, item)
            yield part
            if family.role == "attention.kv_up":  # what is cached is expanded again, with the weight that was just read
                again: Axes = {"tokens": "batch * context", "weight_item": 0}
                yield part._replace(variant=EXPANSION, axes=part.axes | again)


def _product(weight: Weight, sides: tuple[int, int], model: ModelSpec, item: float) -> Part:
    """A matrix of [outer, inner]."""
    (outer, inner), family = sides, weight.family
    block = model.feed_forwards[model.layers[family.layers[0]].feed_forward] if family.layers else None
    if family.role == "router" and block is not None and outer == block.choices:
        return Part("router", "", weight.module, family.layers, {
            "tokens": ROWS, "hidden": inner, "experts": outer, "item": item, "weight_item": weight.item,
            "score_item": ROUTER_ITEM})
    axes = _linear(inner, outer, item, weight.item)
    if family.role == "attention.o_down":  # a matrix of its own for each group of heads
        groups = max(1, attention_of(family, model).output_groups)
        axes |= {"groups": groups, "outer": outer // groups}
    return Part("linear", "head" if family.role == "head" else "", weight.module, family.layers, axes)


def _linear(inner: int, outer: int, item: float, weight_item: float) -> Axes:
    return {"tokens": ROWS, "groups": 1, "inner": inner, "outer": outer, "item": item, "weight_item": weight_item}


def _is_norm(weight: Weight) -> bool:
    leaf = weight.module.rpartition(".")[2]
    return len(weight.family.shape) == 1 and (
        "norm" in weight.family.role or any(fnmatchcase(leaf, word) for word in spellings("norm")))


def _norms(weight: Weight, model: ModelSpec, item: float) -> Iterator[Part]:
    """A norm; one that is narrower than what it is applied to is applied head by head, in each kind of layer to as many
    heads as it has."""
    width = weight.family.shape[0]
    kinds = {index: model.layers[index].attention for index in weight.family.layers}
    alike: dict[tuple[int, str], list[int]] = {}
    for index, name in kinds.items():
        alike.setdefault(_heads(weight, model.attentions[name]), []).append(index)
    for (heads, variant), layers in alike.items() or [((1, "rms"), [])]:
        part = for_all_rows(operators.norm(heads, width, item, weight.item), weight.module, tuple(layers))
        yield part._replace(variant=variant)


def _heads(weight: Weight, attention: Attention) -> tuple[int, str]:
    """(Rows that the norm has for each token, its variant): that of a linear attention's output comes with a gate."""
    role, width = weight.family.role, weight.family.shape[0]
    if role == "attention.q_norm" and width == attention.head_dim:
        return attention.heads, "rms"
    if role == "attention.k_norm" and width == attention.head_dim:
        return attention.kv_heads, "rms"
    inside = attention.kind == "linear" and "." in weight.module.partition("{L}.")[2]
    if inside and width == attention.v_head_dim:
        return attention.heads, "gated"
    return 1, "gated" if inside and width == attention.heads * attention.v_head_dim else "rms"


def experts(model: ModelSpec, weights: list[Weight]) -> Iterator[Part]:
    """All matrices of the routed experts of one block together."""
    item = value_bytes(model)
    blocks: dict[tuple[str, tuple[int, ...]], list[Weight]] = {}
    for weight in weights:
        if is_expert(weight.family) and len(weight.family.shape) > 1:
            module = weight.module.partition(".{E}")[0] if "{E}" in weight.module else weight.module.rpartition(".")[0]
            blocks.setdefault((module, weight.family.layers), []).append(weight)
    for (module, layers), own in blocks.items():
        block = operators.routing_block(own[0].family, model)
        if block is None:
            continue
        values, count = sum(weight.values for weight in own), own[0].family.experts * max(1, len(layers))
        yield Part("experts", "", module, layers, {
            "tokens": ROWS, "experts": block.experts, "top_k": block.visited,
            "matrices": round(values / (block.input_width * block.width)), "hidden": block.input_width,
            "width": block.width, "item": item, "weight_item": _stored(own) / (values * count)})


def _stored(weights: list[Weight]) -> float:
    """Bytes of all of them, with their scales."""
    return sum(weight.item * weight.family.parameters for weight in weights)
