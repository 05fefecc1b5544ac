"""The choice of the next token from the scores of all."""

from __future__ import annotations

from .definition import OpDefinition, TensorSpec, moved

_SCORES = TensorSpec(name="scores", axes=("tokens", "vocab"))

DEFINITION = OpDefinition(
    name="sampling",
    summary="the index of the largest score, or of one drawn by the scores",
    axes={"tokens": "tokens chosen", "vocab": "tokens to choose from", "item": "bytes of a score"},
    inputs=(_SCORES,),
    outputs=(),
    flops=lambda axes: 0.0,
    bytes=moved(_SCORES),
    source="definition: every score is read once",
)
