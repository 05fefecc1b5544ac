"""What a sequence keeps on one rank, as the mathematics needs it: caches that grow with it, states that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dayzero.arrays import Value, largest, real, smallest
from dayzero.ops import cache_bytes_per_token, state_bytes_per_sequence
from dayzero.schema import Attention, Layout, ModelSpec, Workload

from .many import Layouts

FP32 = 4
"""Bytes of a value of 32 bits."""


def value_bytes(model: ModelSpec) -> int:
    """Bytes of an activation or cached value: 4 for a model in f32, else 2 (weights of fewer bits compute in 16)."""
    return FP32 if model.dtype == "f32" else 2


def sequences_per_replica(workload: Workload, layout: Layout | Layouts) -> Value:
    """Sequences that the fullest replica serves together."""
    return real(-(-workload.concurrency // layout.dp))


def attention_sequences(layout: Layout | Layouts, sequences: Value) -> Value:
    """Of so many sequences of a replica those whose attention one rank computes, and whose cache and state it holds:
    all, unless fewer ranks than tp share attention."""
    return largest(1.0, sequences * layout.attention_degree / layout.tp)


def prefill_tokens(workload: Workload, layout: Layout | Layouts) -> Value:
    """Prompt tokens of one prefill step of a replica."""
    return smallest(workload.max_batched_tokens, sequences_per_replica(workload, layout) * workload.computed_tokens)


def layer_cache_bytes(attention: Attention, layout: Layout, tokens: int, bytes_per_value: int) -> int:
    """Bytes that one layer caches on one rank for one sequence of `tokens` tokens; context parallelism deals the tokens
    out among ranks that would otherwise hold the same heads."""
    kept = min(tokens, attention.window) if attention.window else tokens
    whole = -(-kept // layout.cp) * cache_bytes_per_token(attention, bytes_per_value)
    if attention.kind == "latent" or not whole:
        return whole
    parts = max(1, layout.attention_degree // layout.cp)
    return -(-whole * -(-attention.kv_heads // parts) // attention.kv_heads)


def layer_state_bytes(attention: Attention, layout: Layout) -> int:
    """Bytes of constant size that one layer keeps on one rank for one sequence."""
    whole = state_bytes_per_sequence(attention)
    if not whole:
        return 0
    return -(-whole * -(-attention.heads // layout.attention_degree) // attention.heads)


def sequence_bytes(model: ModelSpec, layout: Layout, layers: range, tokens: int) -> tuple[int, int]:
    """(cache, state) bytes on one rank of the stage that holds `layers`, for one sequence of `tokens` tokens."""
    return kept_bytes(model, layout, Counter(model.layers[index].attention for index in layers), tokens)


def kept_bytes(model: ModelSpec, layout: Layout, layers: Mapping[str, int], tokens: int) -> tuple[int, int]:
    """The same for so many layers of each kind of attention."""
    cache = state = 0
    for name, count in layers.items():
        attention = model.attentions[name]
        cache += count * layer_cache_bytes(attention, layout, tokens, value_bytes(model))
        state += count * layer_state_bytes(attention, layout)
    return cache, state
