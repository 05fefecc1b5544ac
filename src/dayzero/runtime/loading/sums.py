"""CRC-32 of the blocks of a file, taken when all of it was verified: later reads of parts are compared with them, and
reads of all of it with each other.

Without torch."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence

BLOCK = 1 << 18
"""Bytes."""


class Sums:
    """Of one file. `add` its bytes in order, and `end`; then `wrong` tells of any range."""

    def __init__(self) -> None:
        self._sums = array("I")
        self._sum = self._size = 0

    def add(self, data: memoryview) -> None:
        """The next bytes."""
        while data.nbytes:
            part = data[:BLOCK - self._size % BLOCK]
            self._sum = zlib.crc32(part, self._sum)
            self._size += part.nbytes
            if self._size % BLOCK == 0:
                self.end()
            data = data[part.nbytes:]

    def end(self) -> None:
        """No more bytes follow, or a block is full."""
        if self._size > len(self._sums) * BLOCK:
            self._sums.append(self._sum)
        self._sum = 0

    def edges(self, start: int, length: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """[first byte, end) of what lies in front of a range and behind it in its blocks."""
        end = start + length
        return (start // BLOCK * BLOCK, start), (end, min(-(-end // BLOCK) * BLOCK, self._size))

    def differs(self, other: Sums) -> int | None:
        """First byte of the first block that is another one in the same file, read again; None: all are the same."""
        return next((number * BLOCK for number, (one, two) in enumerate(zip(self._sums, other._sums, strict=True))
                     if one != two), None)

    def wrong(self, start: int, data: Sequence[memoryview]) -> int | None:
        """First byte of the first block that is not as it was; None: all are. `data` begins and ends with blocks."""
        for number, found in enumerate(_sums(data), start // BLOCK):
            if found != self._sums[number]:
                return number * BLOCK
        return None


def _sums(data: Sequence[memoryview]) -> Iterator[int]:
    """Of each block, of memory that lies in several places."""
    made = size = 0
    for part in data:
        while part.nbytes:
            piece = part[:BLOCK - size]
            made, size = zlib.crc32(piece, made), size + piece.nbytes
            part = part[piece.nbytes:]
            if size == BLOCK:
                yield made
                made = size = 0
    if size:
        yield made
