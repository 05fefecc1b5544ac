"""A tier of weights as they are in the files: below the values that are computed with, above the files.

Quantised weights take their own bytes in it and are decoded on their way up. Where there is no room for all, those stay
that are needed most often, and what is needed in every pass is never evicted. Needs torch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf

import torch

from dayzero.runtime.loading import Kept

from .parts import Checkpoint, Part, Unit
from .policies import Policy

Key = tuple[int, int]


@dataclass
class _Held:
    """Parts of a unit."""

    score: float
    nbytes: int = 0
    parts: dict[str, Kept] = field(default_factory=dict)


class Stored:
    """In `room` bytes of a device's memory. May be used by several threads at once."""

    def __init__(self, checkpoint: Checkpoint, room: int, policy: Policy, device: torch.device) -> None:
        self._checkpoint, self._room, self._policy, self._device = checkpoint, room, policy, device
        self._held: dict[Key, _Held] = {}
        self._lock = threading.Lock()
        self.nbytes = 0
        """That are in it."""

    def fill(self, unit: Unit, part: Part, target: torch.Tensor, time: int) -> bool:
        """Put a part's values into `target`, if it is here; `time`: number of the pass."""
        with self._lock:
            held = self._held.get(unit.key)
            if held is not None and held.score < inf:
                held.score = self._policy.used(unit.key, time)
            kept = held.parts.get(part.name) if held else None
        if kept is None:
            return False
        kept.fill(target)
        return True

    def take(self, unit: Unit, part: Part, time: int, always: bool = False) -> Kept | None:
        """Read a part and keep it, if there is room or something that is needed less often goes for it; None: it is
        not worth it. `always`: it is needed in every pass, so once it is here it is never evicted. Raises what a read
        raises."""
        size = self._checkpoint.bytes(part.name, part.cut)
        with self._lock:
            held = self._held.get(unit.key)
            score = inf if always else held.score if held else self._policy.used(unit.key, time)
            if (held and part.name in held.parts) or not self._free(size, score, unit.key):
                return None
            self.nbytes += size
        kept = None
        try:
            kept = self._checkpoint.keep(part.name, part.cut)
            kept = kept.to(self._device) if kept is not None else None
        finally:
            with self._lock:
                self.nbytes -= size
                if kept is not None:
                    held = self._held.setdefault(unit.key, _Held(score))
                    held.parts[part.name] = kept
                    held.nbytes += kept.nbytes
                    self.nbytes += kept.nbytes
        return kept

    def _free(self, size: int, score: float, key: Key) -> bool:
        """Make room for so many bytes, if all that would have to go for it is worth less."""
        going: list[Key] = []
        freed = self._room - self.nbytes
        while freed < size:
            worth, least = min(((each.score, other) for other, each in self._held.items()
                                if other != key and other not in going), default=(inf, key))
            if worth >= score:
                return False
            going.append(least)
            freed += self._held[least].nbytes
        for other in going:
            self.nbytes -= self._held.pop(other).nbytes
        return True
