"""A paged cache for every kind of attention: all tokens, sliding windows, latents, states, and mixtures of them.

    pages = Pages(layer_kinds(config))            tensors in blocks; pages.cache is what the model takes as its cache
    parts = pages.measure(forward)                bytes of a block of each group, on this rank
    room = cut(parts, memory, ...)                how its memory is shared by groups
    pages.allocate(room)

Who owns which block is decided by a Ledger, in one place, from all ranks' rooms, and comes to every rank's pages as a
Step; where in its memory a block lies is each rank's own affair.
"""

from __future__ import annotations

from .kinds import ALL, Group, LayerKind, groups_of, layer_kinds
from .ledger import Ledger
from .observed import ObservedPages, beginning
from .room import Room, block_tokens, cut
from .saved import CorruptPages, Saved
from .step import (
    Copied,
    Done,
    Dropped,
    Failure,
    Freed,
    Grown,
    Row,
    Step,
    Swapped,
    Trimmed,
    decode,
    encode,
)
from .store import Pages

__all__ = ["ALL", "Copied", "CorruptPages", "Done", "Dropped", "Failure", "Freed", "Group", "Grown", "LayerKind",
           "Ledger", "ObservedPages", "Pages", "Room", "Row", "Saved", "Step", "Swapped", "Trimmed",
           "beginning", "block_tokens", "cut", "decode", "encode", "groups_of", "layer_kinds"]
