"""Linear attention without a correction of the state: gated linear attention, retention, lightning attention.

state <- decay * state + k v, output = q . state. Decode (tokens = 1) updates it token by token; prefill goes chunk by
chunk: the state is read and written once for each chunk, and tokens of one chunk meet in small matrix products.
"""

from __future__ import annotations

from dayzero.arrays import Value, choose, smallest

from . import linear_attention
from .definition import Axes, OpDefinition


def flops(axes: Axes) -> Value:
    """A single token: the decay, 1 for each element of the state, the outer product and q . state, 2 each:
    5 * heads * head_dim * v_head_dim. In chunks of C, for each token and head: the two products with the state,
    4 * head_dim * v_head_dim, q k' and its product with the values inside the chunk: C * 2 * (head_dim + v_head_dim).
    """
    key, value = axes["head_dim"], axes["v_head_dim"]
    rows = axes["sequences"] * axes["tokens"] * axes["heads"]
    chunked = 4 * key * value + smallest(axes["chunk"], axes["tokens"]) * 2 * (key + value)
    return rows * choose(axes["tokens"] == 1, 5 * key * value, chunked)


DEFINITION = OpDefinition(
    name="gated_linear_attention",
    summary="state <- decay * state + k v; output = q . state",
    axes=linear_attention.DEFINITION.axes,
    inputs=linear_attention.DEFINITION.inputs,
    outputs=linear_attention.DEFINITION.outputs,
    flops=flops,
    bytes=linear_attention.moved_bytes,
    source="arXiv:2312.06635 (chunked form, section 4); operations counted from the formula",
)
