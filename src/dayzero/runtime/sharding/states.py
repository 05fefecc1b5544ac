"""States that the library's caches keep of what comes in parts: each rank keeps those of its own channels and heads."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .sharded import is_sharded, like, local


def zero_state(given: torch.Tensor, width: int) -> torch.Tensor:
    """The zero state of a convolution that is given [batch, channels, tokens], of `width` tokens; cut as that is."""
    part = local(given)
    zeros: torch.Tensor = like(part.new_zeros(*part.shape[:-1], width), given)
    return zeros


def states_in_parts() -> None:
    """Have the library's cache layers make a convolution's state in parts where its input is; by themselves they make
    a plain one, which every rank would have to put together. For all of this process; plain tensors are kept as ever.
    """
    from transformers.cache_utils import LinearAttentionLayer

    plain = LinearAttentionLayer.lazy_initialization
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def initialize(self: Any, conv_states: torch.Tensor | None = None, recurrent_states: torch.Tensor | None = None,
                   state_idx: int = 0, **settings: Any) -> None:
        plain(self, conv_states, recurrent_states, state_idx, **settings)
        if conv_states is not None and is_sharded(conv_states):
            self.conv_states[state_idx] = zero_state(conv_states, self.conv_states[state_idx].shape[-1])

    LinearAttentionLayer.lazy_initialization = initialize
