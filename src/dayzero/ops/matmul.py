"""A product of two activations outside attention, such as the mixing of parallel residual streams."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_LEFT = TensorSpec(name="left", axes=("products", "tokens", "inner"))
_RIGHT = TensorSpec(name="right", axes=("products", "inner", "outer"))
_OUTPUT = TensorSpec(name="output", axes=("products", "tokens", "outer"))


def flops(axes: Axes) -> float:
    """2 * products * tokens * inner * outer."""
    return 2 * axes["products"] * axes["tokens"] * axes["inner"] * axes["outer"]


DEFINITION = OpDefinition(
    name="matmul",
    summary="output[p, t, o] = sum over i of left[p, t, i] * right[p, i, o]",
    axes={"products": "independent products", "tokens": "rows of each", "inner": "width that is summed over",
          "outer": "width of the result", "item": "bytes of a value"},
    inputs=(_LEFT, _RIGHT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_LEFT, _RIGHT, _OUTPUT),
    source="definition of the matrix product",
)
