"""Softmax attention over the last tokens one by one and over all earlier ones in compressed entries.

`merged` tokens share one entry; a query sees its last `window` tokens as they are, and of the entries at most `top_k`.
"""

from __future__ import annotations

from dayzero.arrays import Value, smallest
from dayzero.schema import Attention

from .attention import visible_pairs
from .definition import Axes, OpDefinition, TensorSpec, moved

_QUERY = TensorSpec(name="query", axes=("sequences", "tokens", "heads", "head_dim"))
_ENTRIES = TensorSpec(name="entries", axes=("sequences", "keys", "kv_heads", "head_dim"))
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "heads", "v_head_dim"))


def flops(axes: Axes) -> Value:
    """As in attention, 2 * heads * (head_dim + v_head_dim) for each pair; pairs with tokens of the window, and with the
    entries of whatever came before, a share of 1 / merged of its tokens."""
    tokens, context = axes["tokens"], axes["context"]
    pairs = visible_pairs(tokens, context, axes["window"])
    pairs += visible_pairs(tokens, context, axes["merged"] * axes["top_k"]) / axes["merged"]
    return 2 * axes["sequences"] * axes["heads"] * (axes["head_dim"] + axes["v_head_dim"]) * pairs


def merged_axes(attention: Attention, sequences: Value, tokens: Value, context: Value, item: float = 2) -> Axes:
    """The axes of one layer. A config that does not say how many tokens are seen one by one is taken to mean all."""
    there = context + tokens
    entries, near = there // attention.merged, attention.near or there
    chosen = attention.index_top_k or there
    return {
        "sequences": sequences, "tokens": tokens, "context": context, "window": near, "merged": attention.merged,
        "top_k": chosen, "keys": smallest(entries, chosen * tokens) + smallest(context, near) + tokens,
        "heads": attention.heads, "kv_heads": attention.kv_heads, "head_dim": attention.head_dim,
        "v_head_dim": attention.v_head_dim, "item": item,
    }  # fmt: skip


DEFINITION = OpDefinition(
    name="merged_attention",
    summary="softmax attention over the last tokens and over compressed entries of all earlier ones",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "context": "tokens cached before",
          "window": "last tokens seen one by one", "merged": "tokens that share an entry",
          "top_k": "most entries that one query sees",
          "keys": "tokens and entries that are read; each is key and value",
          "heads": "query heads", "kv_heads": "heads of an entry", "head_dim": "width of a query/key head",
          "v_head_dim": "width of a value head", "item": "bytes of a value"},
    inputs=(_QUERY, _ENTRIES),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_QUERY, _ENTRIES, _OUTPUT),
    source="definition of causal attention over two kinds of entries; scores are not written to memory",
)
