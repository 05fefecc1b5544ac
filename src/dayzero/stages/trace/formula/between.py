"""What lies between products: additions to the residual stream, activations and gates."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dayzero.placement import operators
from dayzero.placement.memory import value_bytes
from dayzero.placement.split import is_expert
from dayzero.schema import ModelSpec, WeightFamily

from .parts import Part, Weight, attention_of, for_all_rows, sides_of


def between(model: ModelSpec, weights: list[Weight]) -> Iterator[Part]:
    """Additions to the residual stream, activations and gates."""
    item, prefix = value_bytes(model), _layer_prefix(weights)
    for blocks in (1, 2):
        layers = tuple(index for index, layer in enumerate(model.layers) if (
            model.attentions[layer.attention].kind != "none") + (
            model.feed_forwards[layer.feed_forward].kind != "none") == blocks)
        if layers:
            yield for_all_rows(operators.residual(1, model.hidden_size, item), prefix, layers)._replace(times=blocks)
    for weight in weights:
        family, sides = weight.family, sides_of(weight, model)
        if sides is None or is_expert(family):
            continue
        parent = weight.module.rpartition(".")[0]
        if family.role in ("mlp.down", "shared_experts.down"):
            yield for_all_rows(operators.activation(1, sides[1], item), parent, family.layers)
            if family.role == "shared_experts.down":  # is added to what the routed ones give
                block = parent.rpartition(".")[0]
                yield for_all_rows(operators.residual(1, model.hidden_size, item), block, family.layers)
        elif _has_gate(family, sides, model):
            width = sides[0] if family.role == "attention.gate" else sides[0] // 2
            yield for_all_rows(operators.activation(1, width, item), parent, _gated_layers(family, model))
    for weight in weights:
        if weight.family.role == "linear.decay" and weight.module.endswith("bias"):
            width = prod(weight.family.shape)
            yield for_all_rows(operators.activation(1, width, item), weight.module.rpartition(".")[0],
                               weight.family.layers)


def _has_gate(family: WeightFamily, sides: tuple[int, int], model: ModelSpec) -> bool:
    """Whether a projection gives a gate for the output, by itself or beside the queries."""
    attention = attention_of(family, model)
    both = family.role == "attention.q" and sides[0] == 2 * attention.heads * attention.head_dim
    return both or (family.role == "attention.gate" and bool(_gated_layers(family, model)))


def _gated_layers(family: WeightFamily, model: ModelSpec) -> tuple[int, ...]:
    """Layers where the gate is an operation of its own: in a linear attention it is part of the output's norm."""
    return tuple(index for index in family.layers if model.attentions[model.layers[index].attention].kind != "linear")


def _layer_prefix(weights: list[Weight]) -> str:
    """Path of a layer."""
    return next((weight.module.partition("{L}")[0] + "{L}" for weight in weights
                 if weight.family.layers and "{L}" in weight.module), "")
