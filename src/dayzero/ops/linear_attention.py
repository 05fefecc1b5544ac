"""Linear attention with a gated delta rule: a constant state in place of a growing cache.

state <- decay * (state - k (k . state)) + k v, output = q . state. Decode (tokens = 1) updates it token by token.
Prefill goes chunk by chunk (arXiv:2412.06464 section 3.3): the state is read and written once for each chunk, and
tokens of one chunk meet in small matrix products.
"""

from __future__ import annotations

from dayzero.arrays import Value, ceiling, choose, smallest
from dayzero.schema import Attention

from .cache import STATE_ITEM
from .definition import Axes, OpDefinition, TensorSpec

CHUNK = 64
"""Tokens of a chunk: what the published kernels take."""

_QUERY = TensorSpec(name="query", axes=("sequences", "tokens", "heads", "head_dim"))
_KEY = TensorSpec(name="key", axes=("sequences", "tokens", "heads", "head_dim"))
_VALUE = TensorSpec(name="value", axes=("sequences", "tokens", "heads", "v_head_dim"))
_STATE = TensorSpec(name="state", axes=("sequences", "heads", "head_dim", "v_head_dim"), item="state_item")
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "heads", "v_head_dim"))


def flops(axes: Axes) -> Value:
    """A single token: k . state, the outer product and q . state, 2 operations for each element of the state, and the
    decay, 1: 7 * heads * head_dim * v_head_dim. In chunks of C, for each token and head: the same three products,
    6 * head_dim * v_head_dim, and inside the chunk k k', q k' and the two products with the inverse of the
    chunk's triangular matrix and one with q k': C * (6 * head_dim + 4 * v_head_dim)."""
    key, value = axes["head_dim"], axes["v_head_dim"]
    rows = axes["sequences"] * axes["tokens"] * axes["heads"]
    chunked = 6 * key * value + smallest(axes["chunk"], axes["tokens"]) * (6 * key + 4 * value)
    return rows * choose(axes["tokens"] == 1, 7 * key * value, chunked)


def moved_bytes(axes: Axes) -> Value:
    """Query, key, value and output once; the state read and written once for each chunk (or single token)."""
    rows = sum(tensor.bytes(axes) for tensor in (_QUERY, _KEY, _VALUE, _OUTPUT))
    return rows + 2 * ceiling(axes["tokens"] / axes["chunk"]) * _STATE.bytes(axes)


def linear_axes(attention: Attention, sequences: Value, tokens: float, item: float = 2) -> Axes:
    """The axes of one layer; there is no context axis, because the cost does not depend on it."""
    return {
        "sequences": sequences, "tokens": tokens, "heads": attention.heads, "head_dim": attention.head_dim,
        "v_head_dim": attention.v_head_dim, "chunk": CHUNK, "item": item, "state_item": STATE_ITEM,
    }  # fmt: skip


DEFINITION = OpDefinition(
    name="linear_attention",
    summary="state <- decay * (state - k (k . state)) + k v; output = q . state",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "heads": "heads of the state",
          "head_dim": "width of a query/key head", "v_head_dim": "width of a value head",
          "chunk": "tokens that share one pass over the state", "item": "bytes of an activation value",
          "state_item": "bytes of a value of the state"},
    inputs=(_QUERY, _KEY, _VALUE, _STATE),
    outputs=(_OUTPUT, _STATE),
    flops=flops,
    bytes=moved_bytes,
    source="arXiv:2412.06464 (gated delta rule, chunked form); operations counted from the formula",
)
