"""Rotary positions: pairs of values of each head are turned by an angle that depends on the token's position.

`turned` is the width of the part of a head that turns. With `table` = 1 it is the making of the angles' cosines and
sines instead, once for each position, whatever the number of heads.
"""

from __future__ import annotations

from .definition import Axes, OpDefinition, TensorSpec

_INPUT = TensorSpec(name="input", axes=("tokens", "heads", "turned"))
_TABLE = TensorSpec(name="table", axes=("tokens", "turned"))
_OUTPUT = TensorSpec(name="output", axes=("tokens", "heads", "turned"))


def flops(axes: Axes) -> float:
    """Two products and one sum for each value: 3 * tokens * heads * turned. A table: the angle, its cosine and its
    sine, for each of turned / 2 frequencies."""
    each = 1.5 if axes["table"] else 3.0 * axes["heads"]
    return each * axes["tokens"] * axes["turned"]


def moved_bytes(axes: Axes) -> float:
    """Input and output once, and the cosines and sines (together as wide as the part that turns); a table: these."""
    table = _TABLE.bytes(axes)
    return table if axes["table"] else _INPUT.bytes(axes) + table + _OUTPUT.bytes(axes)


DEFINITION = OpDefinition(
    name="rotary",
    summary="(x, y) <- (x cos - y sin, y cos + x sin) for each pair of values of the part of a head that turns",
    axes={"tokens": "tokens", "heads": "query and key heads that turn", "turned": "width of the part that turns",
          "table": "1: cosines and sines of the positions; 0: their application", "item": "bytes of a value"},
    inputs=(_INPUT, _TABLE),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved_bytes,
    source="arXiv:2104.09864, equation 34; operations counted from the formula",
)
