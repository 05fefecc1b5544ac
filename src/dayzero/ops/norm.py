"""Root-mean-square normalisation: bound by memory on every device."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("tokens", "hidden"))
_WEIGHT = TensorSpec(name="weight", axes=("hidden",), item="weight_item")
_OUTPUT = TensorSpec(name="output", axes=("tokens", "hidden"))


def flops(axes: Axes) -> float:
    """Square, add, scale by the root, scale by the weight: 4 * tokens * hidden."""
    return 4 * axes["tokens"] * axes["hidden"]


DEFINITION = OpDefinition(
    name="norm",
    summary="output = input / sqrt(mean(input ** 2) + eps) * weight",
    axes={"tokens": "tokens", "hidden": "width", "item": "bytes of an activation value",
          "weight_item": "bytes of a weight"},
    inputs=(_INPUT, _WEIGHT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_INPUT, _WEIGHT, _OUTPUT),
    source="arXiv:1910.07467; operations counted from the formula",
)
