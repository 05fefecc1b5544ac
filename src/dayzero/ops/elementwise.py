"""A pointwise operation: activation functions, gates, residual additions."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("operands", "elements"))
_OUTPUT = TensorSpec(name="output", axes=("elements",))


def flops(axes: Axes) -> float:
    """`operations` for each element."""
    return axes["operations"] * axes["elements"]


DEFINITION = OpDefinition(
    name="elementwise",
    summary="output[i] = f(input_1[i], input_2[i], ...)",
    axes={"elements": "elements of the result", "operands": "tensors read", "operations": "operations for an element",
          "item": "bytes of a value"},
    inputs=(_INPUT,),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_INPUT, _OUTPUT),
    source="definition",
)
