"""The choice of experts: one score for each token and expert, then the top k."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("tokens", "hidden"))
_WEIGHT = TensorSpec(name="weight", axes=("experts", "hidden"), item="weight_item")
_SCORES = TensorSpec(name="scores", axes=("tokens", "experts"), item="score_item")


def flops(axes: Axes) -> float:
    """The product with the router's matrix: 2 * tokens * hidden * experts. The selection compares, it does not add."""
    return 2 * axes["tokens"] * axes["hidden"] * axes["experts"]


DEFINITION = OpDefinition(
    name="router",
    summary="the top_k largest of gate(input . weight)",
    axes={"tokens": "tokens", "hidden": "width of the input", "experts": "experts to choose from",
          "item": "bytes of an activation value", "weight_item": "bytes of a weight", "score_item": "bytes of a score"},
    inputs=(_INPUT, _WEIGHT),
    outputs=(_SCORES,),
    flops=flops,
    bytes=moved(_INPUT, _WEIGHT, _SCORES),
    source="definition of the matrix product",
)
