"""What a layer keeps of a sequence: bytes of cache for each token, bytes of state for each sequence.

One layer, all heads, one copy: how a layout divides or replicates it is placement's business.
"""

from __future__ import annotations

from dayzero.errors import ReleaseError
from dayzero.schema import Attention

STATE_ITEM = 4
"""Bytes of one value of a recurrent state: engines and release code accumulate it in fp32."""
HISTORY_ITEM = 2
"""Bytes of one value of a short convolution's history: it holds activations, in 16 bits."""


def cache_bytes_per_token(attention: Attention, bytes_per_value: int = 2) -> int:
    """Bytes that one layer caches for one token, all KV heads together, for all the times that it mixes tokens.

    full, sliding, sparse: one key and one value for each KV head. latent: the compressed key/value and the shared
    positional key, or the share of a token in what several have in common (rounded up). linear: 0, its state does not
    grow. A sliding layer caches this for at most `window` tokens.
    Raises ReleaseError for a latent attention whose ranks are not known.
    """
    if attention.kind == "linear":
        return 0
    if attention.kind == "latent":
        if attention.kv_rank is None:
            raise ReleaseError("a latent attention states no rank of its cached key/value",
                               "state kv_rank on the card, or complete the release's config")
        entry = (attention.kv_rank + (attention.rope_dim or 0)) * bytes_per_value
        return attention.times * -(-entry // attention.merged)
    return attention.times * attention.kv_heads * (attention.head_dim + attention.v_head_dim) * bytes_per_value


def recurrent_state_bytes(attention: Attention) -> int:
    """Bytes of the recurrent state that one linear layer keeps for one sequence: a head_dim x v_head_dim matrix for
    each head, fp32; of a state space, head_dim is the width of its state. 0 for every other kind."""
    if attention.kind != "linear":
        return 0
    return attention.heads * attention.head_dim * attention.v_head_dim * STATE_ITEM


def conv_history_bytes(attention: Attention) -> int:
    """Bytes that the short convolutions in front of a linear attention keep for one sequence: the last
    conv_kernel - 1 inputs of the query, key and value channels, 16 bits each. 0 without convolutions."""
    if attention.kind != "linear" or not attention.conv_kernel:
        return 0
    channels = 2 * attention.kv_heads * attention.head_dim + attention.heads * attention.v_head_dim
    return (attention.conv_kernel - 1) * channels * HISTORY_ITEM


def state_bytes_per_sequence(attention: Attention) -> int:
    """Bytes of constant size that one layer keeps for one sequence: recurrent state plus convolution history."""
    return recurrent_state_bytes(attention) + conv_history_bytes(attention)
