"""The choice of the tokens that a sparse attention looks at: light scores for all pairs, then the top k.

Its projections, norms and rotary positions are operators of their own.
"""

from __future__ import annotations

from dayzero.arrays import Value, smallest
from dayzero.schema import Attention

from .attention import visible_pairs
from .definition import Axes, OpDefinition, TensorSpec, moved

INDEX_ITEM = 4
"""Bytes of the position of a chosen token."""
_ITEM = 1
"""Bytes of a value (arXiv:2512.02556 section 2.1)."""
_QUERY = TensorSpec(name="query", axes=("sequences", "tokens", "heads", "head_dim"))
_KEY = TensorSpec(name="key", axes=("sequences", "keys", "head_dim"))
_WEIGHT = TensorSpec(name="weight", axes=("sequences", "tokens", "heads"))
_CHOSEN = TensorSpec(name="chosen", axes=("sequences", "tokens", "top_k"), item="index_item")


def flops(axes: Axes) -> Value:
    """For each head and visible pair of a query and an entry one dot product, one rectifier and one weighted sum:
    sequences * heads * (2 * head_dim + 3) * pairs. An entry stands for `merged` tokens."""
    pairs = visible_pairs(axes["tokens"], axes["context"]) / axes["merged"]
    return axes["sequences"] * axes["heads"] * (2 * axes["head_dim"] + 3) * pairs


def indexer_axes(attention: Attention, sequences: Value, tokens: Value, context: Value) -> Axes:
    """The axes of one layer that has an indexer, whose values have 8 bits as where it was published."""
    there = context + tokens
    entries = -(-there // attention.merged)
    return {
        "sequences": sequences, "tokens": tokens, "context": context, "keys": entries, "merged": attention.merged,
        "heads": attention.index_heads, "head_dim": attention.index_head_dim,
        "top_k": smallest(entries, attention.index_top_k), "item": _ITEM, "index_item": INDEX_ITEM,
    }  # fmt: skip


DEFINITION = OpDefinition(
    name="indexer",
    summary="the top_k largest over s of sum over heads h of weight[t, h] * relu(query[t, h] . key[s])",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "context": "tokens cached before",
          "keys": "entries that are scored", "merged": "tokens that share an entry", "heads": "heads of the indexer",
          "head_dim": "width of such a head", "top_k": "entries chosen for a query", "item": "bytes of a value",
          "index_item": "bytes of an index"},
    inputs=(_QUERY, _KEY, _WEIGHT),
    outputs=(_CHOSEN,),
    flops=flops,
    bytes=moved(_QUERY, _KEY, _WEIGHT, _CHOSEN),
    source="arXiv:2512.02556, equation 1; operations counted from the formula",
)
