"""A release's model as a module: parameters without data, everything else (rotary tables, masks) with its values.

The library's class for it; its weights are read by `loading`, cut as `sharding` says.
"""

from .experts import alike, packed
from .library import Blueprint, blueprint, decoder_layers, has_weights

__all__ = ["Blueprint", "alike", "blueprint", "decoder_layers", "has_weights", "packed"]
