"""The blocks of one sequence and group, in order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Table:
    """Numbers of blocks; those before `first` are no longer held."""

    __slots__ = ("_count", "_numbers", "first")

    def __init__(self) -> None:
        self.first = 0
        self._numbers: Numbers = np.zeros(8, np.int64)
        self._count = 0

    @property
    def blocks(self) -> Numbers:
        """Those held."""
        return self._numbers[:self._count]

    def before(self, at: int) -> int | None:
        """The block in front of number `at` of the sequence."""
        index = at - self.first - 1
        return int(self._numbers[index]) if 0 <= index < self._count else None

    def put(self, at: int, blocks: Iterable[int]) -> None:
        """Blocks from number `at` of the sequence on; into an empty table it begins there."""
        more = np.fromiter(blocks, np.int64)
        if not self._count:
            self.first = at
        start = at - self.first
        needed = max(self._count, start + len(more))
        if needed > len(self._numbers):
            self._numbers = np.concatenate([self.blocks, np.zeros(max(needed, 8), np.int64)])
        self._numbers[start:start + len(more)] = more
        self._count = needed

    def trim(self, count: int) -> None:
        """Fewer at the start."""
        self._numbers = self._numbers[count:self._count].copy() if count < self._count else np.zeros(8, np.int64)
        self._count -= count
        self.first += count

    def places(self, start: int, stop: int, size: int, rows: Numbers) -> Numbers:
        """Rows of the tokens from `start` to `stop`; blocks have `size` tokens, `rows`: the first one of each."""
        tokens = np.arange(start, stop)
        return rows[self._numbers[tokens // size - self.first]] + tokens % size

    def run(self, start: int, stop: int, size: int, rows: Numbers) -> int | None:
        """Row of the first token when all of them lie one behind the other."""
        low, high = start // size - self.first, (stop - 1) // size - self.first
        firsts = rows[self._numbers[low:high + 1]]
        if int(firsts[-1] - firsts[0]) != (high - low) * size or (np.diff(firsts) != size).any():
            return None
        return int(firsts[0]) + start % size
