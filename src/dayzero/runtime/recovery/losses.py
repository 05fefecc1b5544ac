"""What happened to ranks and spares, and how long it took until tokens came again."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from dayzero.schema import Lost


class Losses:
    """All of them, in order."""

    def __init__(self) -> None:
        self.ranks = list[Lost]()
        self.spares = list[str]()
        """What happened to each that had no place, in words."""
        self._noticed = 0.0
        """When the last loss of ranks was; 0: tokens have come since."""

    @property
    def open(self) -> bool:
        """Whether no token has come since the last loss of ranks."""
        return bool(self._noticed)

    @property
    def told(self) -> tuple[str, ...]:
        """A line for each."""
        return (*(lost.told for lost in self.ranks), *self.spares)

    def add(self, lost: Lost, noticed: float) -> None:
        """One more; `noticed` is a time of the monotonic clock."""
        self.ranks.append(lost)
        self._noticed = noticed

    def spare(self, how: str, *, again: bool) -> str:
        """One of those that had no place has ended; `again`: another one is started. What is told of it."""
        self.spares.append(f"a spare {how}: {'another one is started' if again else 'it is not replaced'}")
        return self.spares[-1]

    def loaded(self, read: int, *, whole: bool) -> None:
        """Somebody holds a place, for which `read` bytes of weights were read; `whole`: all hold theirs now."""
        if self.open:
            last = self.ranks[-1]
            self.ranks[-1] = msgspec.structs.replace(
                last, read_bytes=last.read_bytes + read,
                joined_s=time.monotonic() - self._noticed if whole else last.joined_s)

    def token(self) -> None:
        """One has come."""
        if self.open:
            self.ranks[-1] = msgspec.structs.replace(self.ranks[-1], token_s=time.monotonic() - self._noticed)
            self._noticed = 0.0


def told(lost: Mapping[int, str]) -> str:
    """{rank: why it is lost} in words."""
    return "; ".join(f"rank {rank} {why}" for rank, why in lost.items())
