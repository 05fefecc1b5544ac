"""Convolution along the sequence: short causal filters of linear attentions (inner = 1), patches of towers."""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("sequences", "tokens", "channels"))
_WEIGHT = TensorSpec(name="weight", axes=("channels", "inner", "kernel"), item="weight_item")
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "channels"))


def flops(axes: Axes) -> float:
    """One multiply-add for each tap: 2 * sequences * tokens * channels * inner * kernel."""
    return 2 * axes["sequences"] * axes["tokens"] * axes["channels"] * axes["inner"] * axes["kernel"]


DEFINITION = OpDefinition(
    name="convolution",
    summary="output[t, c] = sum over taps k and inputs i of weight[c, i, k] * input[t - k, i]",
    axes={"sequences": "sequences", "tokens": "positions of the result", "channels": "channels of the result",
          "inner": "input channels that one of them sums over; 1: its own", "kernel": "taps",
          "item": "bytes of an activation value", "weight_item": "bytes of a weight"},
    inputs=(_INPUT, _WEIGHT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_INPUT, _WEIGHT, _OUTPUT),
    source="definition of the convolution",
)
