"""Functions that make masks, called as they were until version 5: positions and a cache that tells sizes by them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

_ORDER = ("config", "input_embeds", "attention_mask", "cache_position", "past_key_values", "position_ids")
"""Arguments in their earlier order."""


def earlier(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which can be called in the earlier way too. Calls in the present way are passed on."""

    @functools.wraps(function)
    def mask(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > _ORDER.index("cache_position"):
            named |= dict(zip(_ORDER, arguments, strict=False))
            arguments = ()
        positions = named.pop("cache_position", None)
        if "input_embeds" in named:
            named["inputs_embeds"] = named.pop("input_embeds")
        if "past_key_values" in named:
            named["cache"] = _cache(named.pop("past_key_values"), positions)
        return function(*arguments, **named)

    return mask


class _Earlier:
    """A cache of shipped code's own making, which tells sizes by positions."""

    def __init__(self, cache: Any, positions: Any) -> None:
        self._cache, self._positions = cache, positions

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Tokens before the new ones."""
        return int(self._cache.get_seq_length(layer_idx))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length of the keys, and where they start."""
        length, start = self._cache.get_mask_sizes(self._positions, layer_idx)
        return int(length), int(start)


def _cache(cache: Any, positions: Any) -> Any:
    if cache is None or positions is None or not _by_positions(cache):
        return cache
    return _Earlier(cache, positions)


def _by_positions(cache: Any) -> bool:
    """Whether a cache is not the library's, or has a method of its own that takes positions."""
    from transformers import Cache

    return not isinstance(cache, Cache) or "cache_position" in inspect.signature(cache.get_mask_sizes).parameters
