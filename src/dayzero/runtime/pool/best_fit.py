"""Blocks of any length: the shortest free range that is long enough is cut, and free neighbours become one range.

A small block that outlives its neighbours breaks up the room of large ones. So small ones are cut from the high end of
a range and large ones from the low end, and the two gather at opposite ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .base import Allocator, round_up


class BestFit(Allocator):
    """Requests are rounded up to `alignment`; they are small up to `small` bytes (default: 1/128 of the capacity, which
    did best on recorded traces). Of equally short free ranges a large block takes the lowest, a small one the highest.

    The free ranges are one list sorted by (length, offset), so that both finding and keeping are a binary search.
    """

    def __init__(self, capacity: int, *, alignment: int = 512, small: int | None = None) -> None:
        self.small = capacity // 128 if small is None else small
        super().__init__(capacity, alignment)

    def _clear(self) -> None:
        length = self.capacity & -self.alignment
        self._free: list[tuple[int, int]] = [(length, 0)]
        self._starts: dict[int, int] = {0: length}  # offset of a free range -> its length
        self._ends: dict[int, int] = {length: 0}  # end of a free range -> its offset

    def _reserve(self, nbytes: int) -> tuple[int, int] | None:
        size = round_up(nbytes, self.alignment)
        place = bisect_left(self._free, (size, 0))
        if place == len(self._free):
            return None
        if size <= self.small:
            place = bisect_left(self._free, (self._free[place][0] + 1, 0)) - 1
        length, offset = self._free.pop(place)
        del self._starts[offset], self._ends[offset + length]
        rest = length - size
        if size <= self.small:
            offset, free = offset + rest, offset
        else:
            free = offset + size
        if rest:
            self._keep(free, rest)
        return offset, size

    def _release(self, offset: int, size: int) -> None:
        before = self._ends.get(offset)
        if before is not None:
            size += offset - before
            offset = self._drop(before)
        if offset + size in self._starts:
            size += self._starts[after := offset + size]
            self._drop(after)
        self._keep(offset, size)

    def _keep(self, offset: int, length: int) -> None:
        self._starts[offset], self._ends[offset + length] = length, offset
        insort(self._free, (length, offset))

    def _drop(self, offset: int) -> int:
        length = self._starts.pop(offset)
        del self._ends[offset + length], self._free[bisect_left(self._free, (length, offset))]
        return offset

    def _largest(self) -> int:
        return self._free[-1][0] if self._free else 0
