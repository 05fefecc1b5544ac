"""Blocks of a power of two; a free block and its buddy, whose offset differs in one bit, make one block again.

Knowlton, A fast storage allocator, CACM 8 (1965). A range that is no power of two is a row of such trees, the longest
first, so that every block lies at a multiple of its own size.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .base import Allocator


class Buddy(Allocator):
    """Requests are rounded up to a power of two, at least `alignment`. Of equal free blocks the lowest is taken."""

    def __init__(self, capacity: int, *, alignment: int = 512) -> None:
        super().__init__(capacity, alignment)

    def _clear(self) -> None:
        self._smallest = self.alignment.bit_length() - 1
        self._orders = range(self._smallest, self.capacity.bit_length())
        self._free: dict[int, list[int]] = {order: [] for order in self._orders}  # offsets, sorted
        self._trees: dict[int, int] = {}  # offset of each whole tree -> its order
        offset = 0
        for order in reversed(self._orders):
            if self.capacity >> order & 1:
                self._trees[offset] = order
                self._free[order].append(offset)
                offset += 1 << order

    def _reserve(self, nbytes: int) -> tuple[int, int] | None:
        wanted = max((nbytes - 1).bit_length(), self._smallest)
        order = next((one for one in range(wanted, self._orders.stop) if self._free[one]), None)
        if order is None:
            return None
        offset = self._free[order].pop(0)
        while order > wanted:  # the lower half is kept, the upper one becomes free
            order -= 1
            insort(self._free[order], offset + (1 << order))
        return offset, 1 << order

    def _release(self, offset: int, size: int) -> None:
        order = size.bit_length() - 1
        while self._trees.get(offset) != order:
            free, buddy = self._free[order], offset ^ (1 << order)
            place = bisect_left(free, buddy)
            if place == len(free) or free[place] != buddy:
                break
            del free[place]
            offset &= ~(1 << order)
            order += 1
        insort(self._free[order], offset)

    def _largest(self) -> int:
        return next((1 << order for order in reversed(self._orders) if self._free[order]), 0)
