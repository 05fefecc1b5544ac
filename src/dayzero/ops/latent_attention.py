"""Attention over a compressed cache (multi-head latent attention, arXiv:2405.04434 section 2.1).

Two ways to compute the same thing. Expanded: the cached latents are turned into keys and values of all heads, then
it is ordinary attention; right for prefill, where each latent is used by many queries. Absorbed: the expanding
matrices are folded into query and output, and every head attends to the latents themselves; right for decode.
`absorbed` (0 or 1) says which. The expansion of new tokens and the folding are products with the same weights, which
the `linear` operator counts; expanding `context` cached tokens again is counted here.

Where an indexer chooses `window` tokens for each query and there are more, attention is absorbed also in prefill, and
reads what is chosen (arXiv:2512.02556 section 2.1).
"""

from __future__ import annotations

from math import inf

import msgspec

from dayzero.arrays import Value, choose, smallest
from dayzero.schema import Attention

from .attention import visible_pairs
from .definition import Axes, OpDefinition, TensorSpec, moved

_QUERY = TensorSpec(name="query", axes=("sequences", "tokens", "heads", "head_dim"))
_LATENT = TensorSpec(name="latent", axes=("sequences", "keys", "latent_dim"))
_OUTPUT = TensorSpec(name="output", axes=("sequences", "tokens", "heads", "v_head_dim"))


def flops(axes: Axes) -> Value:
    """Absorbed: a pair costs 2 * heads * ((kv_rank + rope_dim) + kv_rank). Expanded: 2 * heads * (head_dim +
    v_head_dim), and each cached token is expanded once: 2 * heads * kv_rank * (head_dim - rope_dim + v_head_dim)."""
    pairs = axes["sequences"] * visible_pairs(axes["tokens"], axes["context"], axes["window"])
    absorbed = 2 * axes["heads"] * (axes["latent_dim"] + axes["kv_rank"]) * pairs
    nope = axes["head_dim"] - (axes["latent_dim"] - axes["kv_rank"])
    expansion = 2 * axes["heads"] * axes["kv_rank"] * (nope + axes["v_head_dim"])
    expanded = (2 * axes["heads"] * (axes["head_dim"] + axes["v_head_dim"]) * pairs
                + axes["sequences"] * axes["context"] * expansion)
    return choose(axes["absorbed"], absorbed, expanded)


def latent_axes(
    attention: Attention, sequences: Value, tokens: float, context: Value, item: float = 2, absorbed: bool | None = None
) -> Axes:
    """The axes of one layer. `absorbed` None: as engines do, for a single new token; expanded for more. Where an
    indexer leaves tokens out it is absorbed, unless False is stated: then every token is seen."""
    rank, rope = attention.kv_rank or 0, attention.rope_dim or 0
    keys, window = context + tokens, inf
    if absorbed is not False and attention.index_top_k and attention.merged == 1:
        window = float(attention.index_top_k)
        few = choose(keys > window, 1.0, float(absorbed or tokens == 1))
        return {**latent_axes(msgspec.structs.replace(attention, index_top_k=0), sequences, tokens, context, item),
                "window": window, "keys": choose(few, smallest(keys, tokens * window), keys), "absorbed": few}
    return {
        "sequences": sequences, "tokens": tokens, "context": context, "keys": keys, "window": window,
        "heads": attention.heads, "head_dim": attention.head_dim, "v_head_dim": attention.v_head_dim,
        "kv_rank": rank, "latent_dim": rank + rope, "item": item,
        "absorbed": float(tokens == 1 if absorbed is None else absorbed),
    }  # fmt: skip


DEFINITION = OpDefinition(
    name="latent_attention",
    summary="attention whose keys and values are linear functions of one cached latent for each token",
    axes={"sequences": "sequences", "tokens": "new tokens of each sequence", "context": "tokens cached before",
          "window": "most tokens that one query sees; inf: all", "keys": "tokens whose latent is read",
          "heads": "query heads", "head_dim": "width of an expanded query/key head",
          "v_head_dim": "width of a value head", "kv_rank": "width of the latent",
          "latent_dim": "latent and shared positional key together", "absorbed": "1: on the latents; 0: expanded",
          "item": "bytes of a value"},
    inputs=(_QUERY, _LATENT),
    outputs=(_OUTPUT,),
    flops=flops,
    bytes=moved(_QUERY, _LATENT, _OUTPUT),
    source="arXiv:2405.04434, equations 9-11 and 37-47",
)
