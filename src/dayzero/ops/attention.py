"""Softmax attention over a KV cache, full or sliding, prefill and decode alike.

Decode is the case tokens = 1. `context` tokens of each sequence are cached before; a new token sees those, the new
ones before it and itself, at most `window` tokens in all.
"""

from __future__ import annotations

from math import inf

from dayzero.arrays import Value, largest, smallest
from dayzero.schema import Attention

from .definition import Axes, OpDefinition, TensorSpec, moved

_QUERY = TensorSpec(name="query", axes=("sequences", "tokens", "heads", "head_dim"))
_KEY = TensorSpec(name="key", axes=("sequences", "keys", "kv_heads", "head_dim"))
_VALUE = TensorSpec(name="value", axes=("sequences", "keys", "kv_heads", "v_head_dim"))
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "heads", "v_head_dim"))


def visible_pairs(tokens: Value, context: Value, window: Value = inf) -> Value:
    """Query-key pairs of one sequence: the sum over i = 1 .. tokens of min(context + i, window)."""
    whole = smallest(largest(window - context, 0.0), tokens)
    beyond = 0.0 if isinstance(window, float) and window == inf else window * (tokens - whole)
    return whole * context + whole * (whole + 1) / 2 + beyond


def flops(axes: Axes) -> Value:
    """For each head and visible pair one dot product of head_dim and one weighted sum of v_head_dim:
    2 * sequences * heads * (head_dim + v_head_dim) * pairs. The softmax's few operations for a pair are left out."""
    pairs = visible_pairs(axes["tokens"], axes["context"], axes["window"])
    return 2 * axes["sequences"] * axes["heads"] * (axes["head_dim"] + axes["v_head_dim"]) * pairs


def attention_axes(attention: Attention, sequences: Value, tokens: float, context: Value, item: float = 2) -> Axes:
    """The axes of one layer, all heads, for `sequences` of equal length. What an indexer chooses is a window of as many
    tokens."""
    window = inf if attention.window is None else float(attention.window)
    if attention.index_top_k and attention.merged == 1:
        window = min(window, float(attention.index_top_k))
    return {
        "sequences": sequences, "tokens": tokens, "context": context, "window": window,
        "keys": smallest(context, window) + tokens, "heads": attention.heads, "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim, "v_head_dim": attention.v_head_dim, "item": item,
    }  # fmt: skip


DEFINITION = OpDefinition(
    name="attention",
    summary="output = softmax(query . key / sqrt(head_dim)) . value over the tokens that a query may see",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "context": "tokens cached before",
          "window": "most tokens that one query sees; inf: all", "keys": "tokens whose key and value are read",
          "heads": "query heads", "kv_heads": "key/value heads", "head_dim": "width of a query/key head",
          "v_head_dim": "width of a value head", "item": "bytes of a value"},
    inputs=(_QUERY, _KEY, _VALUE),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_QUERY, _KEY, _VALUE, _OUTPUT),
    source="definition of causal attention; scores are not written to memory (as in FlashAttention, arXiv:2205.14135)",
)
