"""Operators as definitions: named axes, tensors over them, flops and bytes as functions of the axes. No torch."""

from .attention import attention_axes, visible_pairs
from .cache import (
    STATE_ITEM,
    cache_bytes_per_token,
    conv_history_bytes,
    recurrent_state_bytes,
    state_bytes_per_sequence,
)
from .cost import Cost, axes_of, cost, in_order
from .definition import OPERATORS, Axes, OpDefinition, TensorSpec
from .experts import distinct_experts
from .indexer import indexer_axes
from .latent_attention import latent_axes
from .linear_attention import CHUNK, linear_axes
from .merged_attention import merged_axes

__all__ = [
    "CHUNK", "OPERATORS", "STATE_ITEM", "Axes", "Cost", "OpDefinition", "TensorSpec", "attention_axes", "axes_of",
    "cache_bytes_per_token", "conv_history_bytes", "cost", "distinct_experts", "in_order", "indexer_axes",
    "latent_axes", "linear_axes", "merged_axes", "recurrent_state_bytes", "state_bytes_per_sequence", "visible_pairs",
]  # fmt: skip
