"""The routed experts of a feed-forward block: grouped matrix products over the experts that a batch visits."""

from __future__ import annotations

from dayzero.arrays import Value

from .definition import Axes, OpDefinition, TensorSpec

_INPUT = TensorSpec(name="input", axes=("tokens", "hidden"))
_WEIGHT = TensorSpec(name="weight", axes=("experts", "matrices", "hidden", "width"), item="weight_item")
_OUTPUT = TensorSpec(name="output", axes=("tokens", "hidden"))


def distinct_experts(experts: Value, top_k: float, tokens: Value) -> Value:
    """Experts that at least one of `tokens` tokens visits, on average, when each token picks `top_k` of `experts`
    uniformly: experts * (1 - (1 - top_k / experts) ** tokens). Real routing is uneven and touches fewer."""
    missed = (1 - top_k / experts) ** tokens
    return experts * (1 - missed)


def flops(axes: Axes) -> float:
    """Every token passes `matrices` matrices of `top_k` experts: 2 * tokens * top_k * matrices * hidden * width."""
    return 2 * axes["tokens"] * axes["top_k"] * axes["matrices"] * axes["hidden"] * axes["width"]


def moved_bytes(axes: Axes) -> float:
    """Weights of the distinct experts once; each token's input and output once for each expert it visits."""
    touched = distinct_experts(axes["experts"], axes["top_k"], axes["tokens"])
    rows = axes["top_k"] * (_INPUT.bytes(axes) + _OUTPUT.bytes(axes))
    return _WEIGHT.bytes({**axes, "experts": touched}) + rows


DEFINITION = OpDefinition(
    name="experts",
    summary="output[t] = sum over the top_k experts e of t of weight[t, e] * expert_e(input[t])",
    axes={"tokens": "tokens", "experts": "experts held", "top_k": "experts that a token visits",
          "matrices": "matrices of one expert (3 with a gate)", "hidden": "width of input and output",
          "width": "inner width of an expert", "item": "bytes of an activation value",
          "weight_item": "bytes of a stored weight, its share of scales included"},
    inputs=(_INPUT, _WEIGHT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved_bytes,
    source="definition of the grouped product; expected number of distinct experts under uniform routing",
)
