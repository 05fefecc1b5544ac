"""A matrix product with a weight: every projection, the output head, and a dense feed-forward block's matrices."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("tokens", "groups", "inner"))
_WEIGHT = TensorSpec(name="weight", axes=("groups", "outer", "inner"), item="weight_item")
_OUTPUT = TensorSpec(name="output", axes=("tokens", "groups", "outer"))


def flops(axes: Axes) -> float:
    """One multiply-add for each weight and token: 2 * tokens * groups * inner * outer."""
    return 2 * axes["tokens"] * axes["groups"] * axes["inner"] * axes["outer"]


DEFINITION = OpDefinition(
    name="linear",
    summary="output[t, g, o] = sum over i of input[t, g, i] * weight[g, o, i]",
    axes={"tokens": "rows of the activation", "inner": "width that is summed over", "outer": "width of the result",
          "groups": "independent products side by side, each with its own weights; 1: one for all",
          "item": "bytes of an activation value",
          "weight_item": "bytes of a stored weight, its share of scales included"},
    inputs=(_INPUT, _WEIGHT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_INPUT, _WEIGHT, _OUTPUT),
    source="definition of the matrix product",
)
