"""How many values share one scale of a quantised weight, from the shapes of both and what the config states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SIZES = ("group_size", "q_group_size", "weight_block_size", "block_structure")
_NOT_WEIGHTS = ("input_activations", "output_activations", "kv_cache_scheme")


def stated_sizes(config: Mapping[str, Any]) -> Iterator[int]:
    """Sizes of the groups or blocks of weights, anywhere in a config's quantisation table."""
    for key, value in config.items():
        if key in _SIZES:
            sizes = value if isinstance(value, list) else [value]
            yield from (size for size in sizes if isinstance(size, int) and size > 1)
        elif isinstance(value, Mapping) and key not in _NOT_WEIGHTS:
            yield from stated_sizes(value)


def block_size(extent: int, scales: int, config: Mapping[str, Any] | None) -> int:
    """Values that share a scale along an axis of `extent` values and `scales` scales; 1: the axis can be cut anywhere.

    A size that the config states counts where it gives that many scales, for the last block can be a part of one.
    Otherwise one scale serves the whole axis, whatever is cut; of several the size is the power of two that gives as
    many, as in every known format, or else the smallest number that does.
    """
    if scales >= extent:
        return 1
    for size in stated_sizes(config or {}):
        if -(-extent // size) == scales:
            return min(size, extent)
    if scales <= 1:
        return 1
    least = -(-extent // scales)
    power = 1 << (least - 1).bit_length()
    return power if -(-extent // power) == scales else least
