"""Which member is at fault: one whose process is silent, or the one that the others wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from .messages import Beat


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after which something is wrong."""

    beat: float = 5.0
    """Without a beat: the process is stopped."""
    progress: float = 60.0
    """Without any member of the epoch moving while all beat: one of them hangs. Without a beat of one that runs all the
    same: the machine has too much to do."""
    joining: float = 300.0
    """To import, to load and to join."""
    settling: float = 10.0
    """For the others to leave the groups when one is lost."""


class Pulse:
    """What one member's beats say."""

    def __init__(self, now: float) -> None:
        self.heard = self.moved = now
        self.last = Beat(epoch=0, passes=0, inside=False, phase="")

    def beat(self, beat: Beat, now: float) -> None:
        """Take one down."""
        self.heard = now
        if beat != self.last:
            self.moved, self.last = now, beat


def silent(pulses: Mapping[int, Pulse], now: float, deadlines: Deadlines) -> list[int]:
    """Ranks whose process does not run."""
    return [rank for rank, pulse in pulses.items() if now - pulse.heard > deadlines.beat]


def hanging(pulses: Mapping[int, Pulse], now: float, deadlines: Deadlines) -> list[int]:
    """Ranks that keep the others waiting, when nobody has moved for too long.

    Who waits for another rank waits between two passes through its own layers. So the ranks inside of a pass are at
    fault (of those that share layers it cannot be told which one, so all of them); when there is none, those that have
    done the fewest passes.
    """
    if not pulses:
        return []
    serving = all(pulse.last.phase == "serving" for pulse in pulses.values())
    limit = deadlines.progress if serving else deadlines.joining
    if any(now - pulse.moved <= limit for pulse in pulses.values()):
        return []
    if not serving:
        return [rank for rank, pulse in pulses.items() if pulse.last.phase != "serving"]
    inside = [rank for rank, pulse in pulses.items() if pulse.last.inside]
    fewest = min(pulse.last.passes for pulse in pulses.values())
    return inside or [rank for rank, pulse in pulses.items() if pulse.last.passes == fewest]


class Watch:
    """Over the members of an epoch."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines, self._pulses, self._looked = deadlines, dict[int, Pulse](), time.monotonic()

    def begin(self, ranks: Iterable[int]) -> None:
        """A new epoch."""
        self._pulses = {rank: Pulse(time.monotonic()) for rank in ranks}

    def beat(self, rank: int, beat: Beat) -> None:
        """One that has come."""
        self._pulses[rank].beat(beat, time.monotonic())

    def asked(self) -> None:
        """All have something to do from now on."""
        for pulse in self._pulses.values():
            pulse.moved = time.monotonic()

    def at_fault(self, arrived: Mapping[int, float], busy: Collection[int], runs: Callable[[int], bool]
                 ) -> dict[int, str]:
        """{rank: why}. `arrived`: when anything came last from those that are there, also a part of a message, which
        holds up the beats; `busy`: those that have something to do; `runs`: whether the process of one is running, or
        would if it were its turn."""
        now, limits = time.monotonic(), self._deadlines
        if now - self._looked > limits.beat / 2:  # nobody has listened, which is no fault of theirs
            self.asked()
            arrived = dict.fromkeys(arrived, now)
        self._looked = now
        pulses = {rank: pulse for rank, pulse in self._pulses.items() if rank in arrived}
        for rank, pulse in pulses.items():
            pulse.heard = max(pulse.heard, arrived[rank])
        late = [rank for rank in silent(pulses, now, limits)
                if not runs(rank) or now - pulses[rank].heard > max(limits.beat, limits.progress)]
        if late:
            return {rank: f"gave no sign of life for {now - pulses[rank].heard:.1f} s" for rank in late}
        working = {rank: pulse for rank, pulse in pulses.items() if rank in busy}
        return {rank: f"hung for {limits.progress:g} s while {pulses[rank].last.phase}"
                for rank in hanging(working, now, limits)}
