"""The memory pool: one interface for cache blocks, staging buffers and offload slots.

    pool = allocator(2**30)                                 which one is best was found by replay (docs/pool.md)
    arena = Arena(2**30, "cpu", pinned=True)
    block = pool.take(nbytes)                               OutOfMemory says what was asked and what is free
    weight = arena.tensor(block, (1024, 4096), torch.bfloat16)
    pool.give(block)

An allocator hands out offsets and knows no memory: slots in a file are taken in the same way.
"""

from __future__ import annotations

from .arena import Arena
from .base import Allocator, Block, BlockError, OutOfMemory, Statistics
from .best_fit import BestFit
from .buddy import Buddy
from .slab import Slab

__all__ = ["DEFAULT", "Allocator", "Arena", "BestFit", "Block", "BlockError", "Buddy", "OutOfMemory", "Slab",
           "Statistics", "allocator"]

DEFAULT = BestFit
"""For blocks of several sizes: what needs the least memory on every recorded trace that ships with the tests."""


def allocator(nbytes: int, *, equal: int | None = None, alignment: int = 512) -> Allocator:
    """The allocator to use for a range of `nbytes`; `equal`: all blocks have so many bytes. Raises UsageError."""
    if equal is not None:
        return Slab(nbytes, equal, alignment=alignment)
    return DEFAULT(nbytes, alignment=alignment)
