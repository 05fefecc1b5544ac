"""Which experts the next layer will need. Needs torch.

    router   the next layer's router, run on the input of this layer's experts: layers change it little
    last     those that the last token had there
    none     nothing is read ahead: where reads need the processor as much as computing does, that is the fastest
    tried    the faster of router and none, by the seconds of the first passes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

import torch

from .experts import chosen
from .parts import Experts
from .slots import Slots

WAYS = ("tried", "router", "last", "none")
_TRIED = ("none", "router")
_BLOCK, _BLOCKS = 4, 3
"""Passes that a way is tried for at a time, of which the first does not count, and how often."""

_REMEMBERED = 4096
"""Passes of which the experts are kept, for `replay`."""


class Foresight:
    """Told what each layer chose, it has the next one's experts read ahead."""

    def __init__(self, experts: Sequence[Experts], slots: Sequence[Slots], way: str) -> None:
        self._experts, self._slots, self.way = experts, slots, _TRIED[0] if way == "tried" else way
        self._seconds: dict[str, list[float]] | None = {each: [] for each in _TRIED} if way == "tried" else None
        self._few = False
        self._passes = 0
        self._last: list[Sequence[int]] = [()] * len(experts)
        self.trace: deque[list[Sequence[int]]] = deque(maxlen=_REMEMBERED)
        """The experts of each layer, for each of the last passes."""

    def __call__(self, number: int, hidden: torch.Tensor, hit: Sequence[int]) -> None:
        """The experts `hit` of the model's `number`-th ones begin, with input `hidden`."""
        self._last[number] = hit
        self._few = hidden.shape[:-1].numel() == 1
        if number == 0 or not self.trace:
            self.trace.append([])
        self.trace[-1].append(hit)
        following = (number + 1) % len(self._experts)
        found, slots = self._experts[following], self._slots[following]
        if self.way == "none" or 2 * len(hit) > slots.count:
            return
        expected = self._expected(following, hidden)
        if len(hit) + len(expected) <= slots.count:
            slots.ahead((unit for each in expected if (unit := found.units[each]).parts), guessed=True)

    def passed(self, seconds: float) -> None:
        """A pass took so long. Decides, when all ways have been tried."""
        if self._seconds is None or not self._few:
            return
        if self._passes % _BLOCK:
            self._seconds[self.way].append(seconds)
        self._passes += 1
        if self._passes == _BLOCK * _BLOCKS * len(_TRIED):
            tried, self._seconds = self._seconds, None
            self.way = min(_TRIED, key=lambda each: median(tried[each]))
        else:
            self.way = _TRIED[self._passes // _BLOCK % len(_TRIED)]

    def _expected(self, following: int, hidden: torch.Tensor) -> Sequence[int]:
        router = self._experts[following].router
        if self.way == "router" and following and router is not None:
            with torch.no_grad():
                index = chosen(router[1].forward(hidden))
            if index is not None:
                return [each for each in dict.fromkeys(index.T.flatten().tolist())  # the first choices first
                        if 0 <= each < len(self._experts[following].units)]
        return self._last[following]
