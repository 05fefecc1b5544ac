"""What each layer of a model keeps of the past: all tokens, the last of them, states, or nothing.

It is read from the cache layers that the library makes for the model's config, never from names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ALL = 0
_PARTS = 64
"""Blocks of a window, or more: what it holds beside its tokens is then at most this part of them."""


@dataclass(frozen=True)
class Group:
    """Layers whose blocks come and go together: they share block numbers."""

    window: int | None
    """Tokens that a query sees, itself included; ALL for the whole past; None for states, which have no tokens."""

    def tokens(self, block_tokens: int) -> int:
        """Tokens of a block, at most `block_tokens` and a divisor of it. A window that slides holds a block more than
        its tokens need, so that its blocks are the shorter the shorter it is. 0 for states."""
        if self.window is None:
            return 0
        fitting = block_tokens if self.window == ALL else max(1, min(block_tokens, self.window // _PARTS))
        return next(size for size in range(fitting, 0, -1) if block_tokens % size == 0)

    def most(self, tokens: int, chunk: int, block_tokens: int) -> int:
        """Blocks (or slots) that a sequence of so many tokens needs at any time, computed `chunk` at a time."""
        if self.window is None:
            return 1
        size = self.tokens(block_tokens)
        all_of_it = -(-tokens // size)
        return all_of_it if self.window == ALL else min(all_of_it, -(-(self.window - 1 + chunk) // size) + 1)


@dataclass(frozen=True)
class LayerKind:
    """One layer's cache."""

    window: int | None = None
    """As in Group; None when the layer keeps no tokens."""
    states: int = 0
    """Pairs of a convolution's and a recurrence's state."""
    indexed: bool = False
    """Keys of an indexer beside the tokens' keys and values."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Where its blocks are."""
        tokens = () if self.window is None else (Group(self.window),)
        return (*tokens, Group(None)) if self.states else tokens


def layer_kinds(config: Any) -> tuple[LayerKind, ...] | None:
    """For each layer of the text model. None when the library has no cache layers for the config, or some of a kind
    whose rules are its own."""
    from transformers import DynamicCache

    layers = DynamicCache(config=config).layers
    kinds = [_kind(layer) for layer in layers]
    return tuple(kind for kind in kinds if kind is not None) if kinds and None not in kinds else None


def _kind(layer: Any) -> LayerKind | None:
    from transformers import cache_utils as library

    states = getattr(layer, "number_of_states", 0)
    window = getattr(layer, "sliding_window", ALL)
    kinds = {
        library.DynamicLayer: LayerKind(window=ALL),
        library.DynamicSlidingWindowLayer: LayerKind(window=window),
        library.DynamicIndexedLayer: LayerKind(window=ALL, indexed=True),
        library.LinearAttentionLayer: LayerKind(states=states),
        library.LinearAttentionAndFullAttentionLayer: LayerKind(window=ALL, states=states),
        library.LinearAttentionAndSlidingWindowAttentionLayer: LayerKind(window=window, states=states),
        library.DummyLayer: LayerKind(),
    }
    return kinds.get(type(layer))


def groups_of(kinds: Iterable[LayerKind]) -> tuple[Group, ...]:
    """All groups: tokens first, states last. A model without a cache has one for tokens, with no layer in it."""
    found = {group for kind in kinds for group in kind.groups}
    return tuple(sorted(found, key=lambda group: (group.window is None, group.window or 0))) or (Group(ALL),)
