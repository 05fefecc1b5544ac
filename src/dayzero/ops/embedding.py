"""The look-up of token vectors: it moves the rows of the tokens that occur, and computes nothing."""

from __future__ import annotations

from .definition import OpDefinition, TensorSpec, moved

_ROWS = TensorSpec(name="rows", axes=("tokens", "hidden"))
_OUTPUT = TensorSpec(name="output", axes=("tokens", "hidden"))

DEFINITION = OpDefinition(
    name="embedding",
    summary="output[t] = table[token[t]]; only the rows that are looked up are read",
    axes={"tokens": "tokens looked up", "hidden": "width of a row", "item": "bytes of a value"},
    inputs=(_ROWS,),
    outputs=(_OUTPUT,),
    flops=lambda axes: 0.0,
    bytes=moved(_ROWS, _OUTPUT),
    source="definition of the look-up",
)
