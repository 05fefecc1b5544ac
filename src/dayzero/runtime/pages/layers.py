"""The library's cache interface over blocks: the models that it has code for run unchanged."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from dayzero.runtime.sharding.states import zero_state

from .call import Call
from .kinds import ALL, Group, LayerKind
from .states import States
from .track import Scratch, Track

KEYS, INDEX = "keys", "index"


class Current(Protocol):
    """What a layer reads of the pages that it belongs to."""

    call: Call

    def places(self, group: Group) -> int:
        """Tokens of a pool of its own, for a tensor that was not there when memory was allocated."""
        ...


class PagedCache(Cache):  # type: ignore[misc]
    """Lengths come from the call, also for layers that other ranks have."""

    keeps_lengths = True


class PagedTokens(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of all tokens, or of the last of them."""

    def __init__(self, kind: LayerKind, current: Current, scratch: Scratch | None) -> None:
        CacheLayerMixin.__init__(self)
        self.tracks = {KEYS: Track(KEYS, 2, scratch)}
        self._keys = self.tracks[KEYS]
        if kind.indexed:
            self.tracks[INDEX] = Track(INDEX, 1, scratch)
            self.indexer_position_ids = None
        self.group = Group(kind.window)
        self._window = kind.window or ALL
        self.is_sliding = bool(kind.window)
        if kind.window:
            self.sliding_window = kind.window
        self._current = current
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: blocks are there."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any,
               **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep [batch, heads, new, width]; give [batch, heads, past and new, width]."""
        track = self._keys
        keys, values = track.update((key_states, value_states), self._current.call.spans[track.lines],
                                    self._current.places(self.group) if track.pool is None else 0)
        return keys, values

    def update_indexer(self, states: torch.Tensor) -> torch.Tensor:
        """Keep [batch, new, width]; give [batch, past and new, width]."""
        track = self.tracks[INDEX]
        return track.update((states,), self._current.call.spans[track.lines],
                            self._current.places(self.group) if track.pool is None else 0)[0]

    def get_seq_length(self) -> int:
        """Past tokens of the longest row."""
        return self._current.call.past

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(tokens that attention sees, how many came before)."""
        call = self._current.call
        width = call.width(self._window)
        return width, call.past + query_length - width

    def get_max_length(self) -> int:
        """-1: no limit; otherwise the window."""
        return self.group.window or -1


class PagedStates(LinearAttentionLayer):  # type: ignore[misc]
    """States of a convolution and a recurrence: the library's own updates, on what `states` brings for each call."""

    def __init__(self, kind: LayerKind) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=kind.states)
        self.states = States(self)

    def lazy_initialization(self, conv_states: torch.Tensor | None = None,
                            recurrent_states: torch.Tensor | None = None, state_idx: int = 0,
                            conv_kernel_size: int | None = None) -> None:
        """Zero states shaped as what comes; a distributed tensor gets a distributed state."""
        if conv_states is not None:
            width = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            self.conv_kernel_size[state_idx] = width
            self.conv_states[state_idx] = zero_state(conv_states, width)
            self.is_conv_states_initialized[state_idx] = True
            self.device, self.dtype = conv_states.device, conv_states.dtype
        if recurrent_states is not None:
            self.recurrent_states[state_idx] = torch.zeros_like(recurrent_states)
            self.is_recurrent_states_initialized[state_idx] = True


class PagedBoth(PagedStates, PagedTokens):
    """A layer with states beside its tokens."""

    def __init__(self, kind: LayerKind, current: Current, scratch: Scratch | None) -> None:
        PagedTokens.__init__(self, kind, current, scratch)
        PagedStates.__init__(self, kind)

    def get_max_length(self) -> int:
        """As of the tokens."""
        return PagedTokens.get_max_length(self)


def paged_layer(kind: LayerKind, current: Current, scratch: Scratch | None) -> Any:
    """The layer for what is kept."""
    if kind.window is None:
        return PagedStates(kind) if kind.states else DummyLayer()
    return (PagedBoth if kind.states else PagedTokens)(kind, current, scratch)
