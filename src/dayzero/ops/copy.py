"""Values that only move: layout changes, entries written to a cache, gathered rows."""

from __future__ import annotations

from .definition import OpDefinition, TensorSpec, moved

_INPUT = TensorSpec(name="input", axes=("elements",))
_OUTPUT = TensorSpec(name="output", axes=("elements",))

DEFINITION = OpDefinition(
    name="copy",
    summary="output[i] = input[index(i)]",
    axes={"elements": "values moved", "item": "bytes of a value"},
    inputs=(_INPUT,),
    outputs=(_OUTPUT,),
    flops=lambda axes: 0.0,
    bytes=moved(_INPUT, _OUTPUT),
    source="definition: each value is read once and written once",
)
