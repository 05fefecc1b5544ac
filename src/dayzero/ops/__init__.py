"""Operators as definitions: named axes, tensors over them, flops and bytes as functions of the axes. No torch."""

from .cache import (
    cache_bytes_per_token,
    conv_history_bytes,
    recurrent_state_bytes,
    state_bytes_per_sequence,
)

__all__ = [
    "cache_bytes_per_token",
    "conv_history_bytes",
    "recurrent_state_bytes",
    "state_bytes_per_sequence",
]
