"""Which of the experts that are held makes room for another: the one of the least score. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from math import inf, log2
from typing import Protocol


class Policy(Protocol):
    """Gives each key a score; scores of different times are comparable."""

    def used(self, key: Hashable, time: int) -> float:
        """Its score after it was needed in pass `time`."""

    def foreseen(self, key: Hashable, time: int) -> float:
        """Its score when it was only read ahead in pass `time`."""


class Recent:
    """Least recently used goes first."""

    def __init__(self) -> None:
        self._clock = 0

    def used(self, key: Hashable, time: int) -> float:
        del key, time
        self._clock += 1
        return self._clock

    foreseen = used


class Frequent:
    """Least frequently used goes first; what was evicted is remembered."""

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()

    def used(self, key: Hashable, time: int) -> float:
        del time
        self._counts[key] += 1
        return self._counts[key]

    def foreseen(self, key: Hashable, time: int) -> float:
        del time
        return self._counts[key] + 1


class Fading:
    """Least frequently used goes first, where a use counts half as much after `half` passes; what was evicted is
    remembered.

    A score is the binary logarithm of the sum of 2^(pass / half) over all uses: later uses count more instead of
    earlier ones less, so that no score has to be touched as time passes.
    """

    def __init__(self, half: float) -> None:
        self._half = half
        self._scores: dict[Hashable, float] = {}

    def used(self, key: Hashable, time: int) -> float:
        score = self._scores[key] = self.foreseen(key, time)
        return score

    def foreseen(self, key: Hashable, time: int) -> float:
        now = time / self._half
        before = self._scores.get(key, -inf)
        high, low = max(now, before), min(now, before)
        return high + log2(1 + 2 ** (low - high))


class Fixed:
    """Known frequencies, which do not change: the most frequent stay."""

    def __init__(self, counts: Mapping[Hashable, float]) -> None:
        self._counts = Counter(dict(counts))

    def used(self, key: Hashable, time: int) -> float:
        del time
        return self._counts[key]

    foreseen = used
