"""The table of which keys a query may see, where code builds one; fused kernels need none."""

from __future__ import annotations

from .definition import OpDefinition, TensorSpec, moved

_OUTPUT = TensorSpec(name="mask", axes=("sequences", "tokens", "keys"))

DEFINITION = OpDefinition(
    name="mask",
    summary="mask[q, k] = position[k] <= position[q] and whatever else the layer asks",
    axes={"sequences": "sequences that have a mask of their own", "tokens": "queries of each", "keys": "keys of each",
          "item": "bytes of a value"},
    inputs=(),
    outputs=(_OUTPUT,),
    flops=lambda axes: axes["sequences"] * axes["tokens"] * axes["keys"],
    bytes=moved(_OUTPUT),
    source="definition: one comparison for each pair",
)
