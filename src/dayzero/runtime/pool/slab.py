"""Equal blocks, as caches have them: a stack of free ones, so that taking and giving are O(1) and nothing is split."""

from __future__ import annotations

from dayzero.errors import UsageError

from .base import Allocator, Block, round_up


class Slab(Allocator):
    """`capacity // stride` blocks of `block_bytes`, each at a multiple of `alignment`. The last block that came back is
    the first to be handed out again: its memory is the warmest."""

    def __init__(self, capacity: int, block_bytes: int, *, alignment: int = 1) -> None:
        if block_bytes < 1:
            raise UsageError(f"a pool of blocks of {block_bytes} bytes was asked for", "ask for at least one byte each")
        self.block_bytes = block_bytes
        self.stride = round_up(block_bytes, alignment)
        super().__init__(capacity, alignment)
        if capacity < self.stride:
            raise UsageError(f"a pool of {capacity} bytes holds no block of {self.stride}", "give it more memory")

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return self.capacity // self.stride

    def index(self, block: Block) -> int:
        """Number of a block, from 0."""
        return block.offset // self.stride

    def _clear(self) -> None:
        self._free: list[int] = []  # offsets that came back
        self._fresh = 0  # everything from here on was never handed out since the last reset

    def _reserve(self, nbytes: int) -> tuple[int, int] | None:
        if nbytes > self.stride:
            return None
        if self._free:
            return self._free.pop(), self.stride
        if self._fresh + self.stride > self.capacity:
            return None
        self._fresh += self.stride
        return self._fresh - self.stride, self.stride

    def _release(self, offset: int, size: int) -> None:
        self._free.append(offset)

    def _largest(self) -> int:
        return self.stride if self._free or self._fresh + self.stride <= self.capacity else 0
