"""Memory for a number of equal units, of which more exist: which is in which slot, and which goes when another comes.

Reads go on in background threads straight into the slots. What is only guessed to be needed is read one by one, the
likeliest first, and when something is needed, reads ahead that have not begun are withdrawn: a wrong guess then takes
the time of one read at most. One thread computes and asks; it alone changes the tables here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from dayzero.runtime.timeline import OFF, Background, Timeline, Work

from .parts import Checkpoint, Part, Unit
from .policies import Policy
from .stored import Stored

Key = tuple[int, int]
_ALIGNED = 64
_QUEUE = 1 << 16


@dataclass
class Counts:
    """What happened since the last `reset`."""

    hits: int = 0
    """Units that were there, whole, when they were needed."""
    late: int = 0
    """Units whose read ahead was not over."""
    misses: int = 0
    """Units that nobody had read ahead."""
    ahead: int = 0
    """Units read ahead."""
    useful: int = 0
    """Of these, the ones that were needed before they were dropped."""
    needed_bytes: int = 0
    """Of all units that were needed, as they are in the files."""
    fresh_bytes: int = 0
    """Of these, the ones that had to be read for it."""
    read_bytes: int = 0
    """Of all units that were read."""
    stored_bytes: int = 0
    """Of `fresh_bytes`, what was in memory as it is in the files."""
    stall_s: float = 0.0
    """Waited for reads."""

    def reset(self) -> None:
        """All zero."""
        for each in fields(self):
            setattr(self, each.name, each.default)


@dataclass
class Reading:
    """Reads units through the checkpoint, several at a time."""

    checkpoint: Checkpoint
    threads: int = 4
    timeline: Timeline = OFF
    counts: Counts = field(default_factory=Counts)
    levels: list[Stored] = field(default_factory=list)
    """Between what is computed with and the files, the nearest first."""
    time: int = 0
    """Number of the pass."""

    def __post_init__(self) -> None:
        self._parts: dict[tuple[Key, str], int] = {}
        self._found: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._lanes = {
            lane: Background(f"tiers {lane}", timeline=self.timeline, limit=_QUEUE, workers=workers)
            for lane, workers in (("needed", self.threads), ("ahead", self.threads), ("guessed", 1))}
        self._sizes: dict[Key, int] = {}

    def start(self, unit: Unit, targets: Sequence[tuple[Part, torch.Tensor]], lane: str = "needed") -> list[Work]:
        """Read a unit into its memory: part by part, or as one where it is `guessed` to be needed."""
        groups = [targets] if lane == "guessed" else [[each] for each in targets]
        return [self._lanes[lane].submit(self._fill, unit, group, category="load", name=group[0][0].name,
                                         nbytes=sum(part.nbytes for part, _ in group)) for group in groups]

    def _fill(self, unit: Unit, targets: Sequence[tuple[Part, torch.Tensor]]) -> None:
        for part, target in targets:
            if any(level.fill(unit, part, target, self.time) for level in self.levels):
                with self._lock:
                    self._found[unit.key] += self._size(unit, part)
                continue
            with self._lock:
                self.counts.read_bytes += self._size(unit, part)
            for level in self.levels:
                kept = level.take(unit, part, self.time)
                if kept is not None:
                    kept.fill(target)
                    break
            else:
                self.checkpoint.fill(part.name, part.cut, target)

    def keep(self, unit: Unit, level: Stored) -> list[Work]:
        """Read a unit to stay at a level for good, as far as that has room."""
        return [self._lanes["needed"].submit(level.take, unit, part, self.time, True, category="load",
                                             name=part.name, nbytes=part.nbytes) for part in unit.parts]

    def counted(self, key: Key) -> None:
        """A unit that had to be read is there: count what of it was in memory as it is stored."""
        with self._lock:
            found = self._found.pop(key, 0)
        self.counts.stored_bytes += min(found, self._sizes[key])  # a guess that was dropped was read in vain before

    def wait(self, works: Iterable[Work]) -> None:
        """Until they are done; the time counts as lost. Raises what a read raised."""
        todo = [work for work in works if not work.done()]
        began = time.perf_counter()
        if todo:
            with self.timeline.span("wait", "tiers"):
                for work in todo:
                    work.exception()
        self.counts.stall_s += time.perf_counter() - began

    def size(self, unit: Unit) -> int:
        """Bytes of a unit in the files."""
        if unit.key not in self._sizes:
            self._sizes[unit.key] = sum(self._size(unit, part) for part in unit.parts)
        return self._sizes[unit.key]

    def _size(self, unit: Unit, part: Part) -> int:
        key = unit.key, part.name
        if key not in self._parts:
            self._parts[key] = self.checkpoint.bytes(part.name, part.cut)
        return self._parts[key]

    def close(self) -> None:
        """End the threads; what is queued is dropped."""
        for lane in self._lanes.values():
            lane.close(cancel=True)


class Stacked:
    """Slots that are rows of one tensor for each part: what a module with stacked experts can take as its experts."""

    def __init__(self, unit: Unit, count: int, device: torch.device) -> None:
        self.tensors = {part.leaf: torch.empty((count, *part.shape[1:]), dtype=part.dtype, device=device)
                        for part in unit.parts}

    def targets(self, unit: Unit, slot: int) -> list[tuple[Part, torch.Tensor]]:
        """Where the parts of a unit go."""
        return [(part, self.tensors[part.leaf][slot:slot + 1]) for part in unit.parts]


class Flat:
    """Slots that are ranges of bytes: for units of different shapes, in memory `size` bytes each at most."""

    def __init__(self, size: int, count: int, device: torch.device) -> None:
        self._bytes = torch.empty((count, size), dtype=torch.uint8, device=device)

    def targets(self, unit: Unit, slot: int) -> list[tuple[Part, torch.Tensor]]:
        """Where the parts of a unit go."""
        made, at = [], 0
        for part in unit.parts:
            made.append((part, self._bytes[slot, at:at + part.nbytes].view(part.dtype).view(part.shape)))
            at += aligned(part.nbytes)
        return made


def aligned(nbytes: int) -> int:
    """Bytes that a part takes in a flat slot."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def flat_bytes(unit: Unit) -> int:
    """Bytes that a unit takes in a flat slot."""
    return sum(aligned(part.nbytes) for part in unit.parts)


class Slots:
    """See above."""

    def __init__(self, count: int, store: Stacked | Flat, policy: Policy, reading: Reading, *, alike: bool = False
                 ) -> None:
        """`alike`: which unit is in which slot follows from what was asked for alone, never from how fast reads were,
        so that all ranks that ask for the same have the same; a slot may have to wait for a read in vain then."""
        self.count, self._store, self._policy, self._reading, self._alike = count, store, policy, reading, alike
        self._keys: list[Key | None] = [None] * count
        self._where: dict[Key, int] = {}
        self._scores = np.full(count, -np.inf)
        self._locked = np.zeros(count, dtype=bool)
        self._works: dict[Key, list[Work]] = {}
        self._ahead: set[Key] = set()
        self._fresh: set[Key] = set()

    def need(self, units: Sequence[Unit]) -> None:
        """Lock what is there and begin to read the rest. At most as many as there are slots are locked at a time."""
        counts, reading = self._reading.counts, self._reading
        if not self._alike:
            self._withdraw({unit.key for unit in units})
        for unit in units:
            counts.needed_bytes += reading.size(unit)
            if self._count(unit):
                counts.fresh_bytes += reading.size(unit)
                self._fresh.add(unit.key)
            if unit.key in self._where:
                self._locked[self._where[unit.key]] = True
        for unit in units:
            slot = self._where.get(unit.key)
            if slot is None:
                while (slot := self._place(unit, "needed")) is None:
                    self._await_any()
                self._locked[slot] = True
            self._scores[slot] = self._policy.used(unit.key, reading.time)

    def finish(self, units: Sequence[Unit]) -> list[int]:
        """Wait for what was needed; the slot of each. Raises what a read raised."""
        for unit in units:
            works = self._works.pop(unit.key, [])
            self._reading.wait(works)
            for work in works:
                self._check(unit.key, work)
            if unit.key in self._fresh:
                self._fresh.discard(unit.key)
                self._reading.counted(unit.key)
        return [self._where[unit.key] for unit in units]

    def held(self, unit: Unit) -> bool:
        """Whether it is locked."""
        return unit.key in self._where and bool(self._locked[self._where[unit.key]])

    def _check(self, key: Key, work: Work) -> None:
        """Raises what the read raised; its slot is empty then."""
        if work.exception() is not None:
            self._drop(key)
            work.result()

    def _count(self, unit: Unit) -> bool:
        """Whether it has to be read for this need."""
        counts, key = self._reading.counts, unit.key
        ahead = key in self._ahead
        self._ahead.discard(key)
        counts.useful += ahead
        if key not in self._where:
            counts.misses += 1
        elif any(not work.done() for work in self._works.get(key, ())):
            counts.late += 1
        else:
            counts.hits += 1
        return ahead or key not in self._where

    def there(self, unit: Unit) -> bool:
        """Whether it has a slot, also one that is still being read."""
        return unit.key in self._where

    def release(self, unit: Unit | None = None) -> None:
        """Let a unit, or all that is held, be evicted."""
        if unit is None:
            self._locked[:] = False
        elif unit.key in self._where:
            self._locked[self._where[unit.key]] = False

    def ahead(self, units: Iterable[Unit], *, guessed: bool = False) -> None:
        """Begin to read what is not there, as far as there is room that is not held."""
        for unit in units:
            if unit.key in self._where:
                continue
            score = self._policy.foreseen(unit.key, self._reading.time)
            slot = self._place(unit, "guessed" if guessed else "ahead")
            if slot is None:
                return
            self._scores[slot] = score
            self._ahead.add(unit.key)
            self._reading.counts.ahead += 1

    def views(self, unit: Unit) -> list[tuple[Part, torch.Tensor]]:
        """The memory of a unit that is held."""
        return self._store.targets(unit, self._where[unit.key])

    def _place(self, unit: Unit, lane: str) -> int | None:
        slot = self._free()
        if slot is None:
            return None
        self._keys[slot], self._where[unit.key] = unit.key, slot
        self._works[unit.key] = self._reading.start(unit, self._store.targets(unit, slot), lane)
        return slot

    def _free(self) -> int | None:
        """A slot that nobody uses, emptied; None when all others are locked or are being read into."""
        blocked = self._locked if self._alike else self._locked | self._reads()
        if blocked.all():
            return None
        slot = int(np.where(blocked, np.inf, self._scores).argmin())
        if (old := self._keys[slot]) is not None:
            self._reading.wait(work for work in self._works.get(old, ()) if not work.cancel())
            self._drop(old)
        return slot

    def _reads(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which slots are being read into. One for which that failed is empty: it was read ahead in vain, and who needs
        it reads again and is told."""
        blocked = np.zeros(self.count, dtype=bool)
        for key, works in list(self._works.items()):
            if not all(work.done() for work in works):
                blocked[self._where[key]] = True
            elif not any(work.exception() for work in works):
                del self._works[key]
            elif not self._locked[self._where[key]]:
                self._drop(key)
        return blocked

    def _await_any(self) -> None:
        """Wait for a read ahead, whose slot can then be taken. Raises RuntimeError when all slots are locked."""
        works = [works for key, works in self._works.items() if not self._locked[self._where[key]]]
        if not works:
            raise RuntimeError("more units are needed at once than there are slots")
        self._reading.wait(works[0])

    def _drop(self, key: Key) -> None:
        slot = self._where.pop(key)
        self._keys[slot], self._scores[slot], self._locked[slot] = None, -np.inf, False
        self._works.pop(key, None)
        self._ahead.discard(key)

    def _withdraw(self, needed: set[Key]) -> None:
        """Reads ahead of what is not needed now and that no thread has begun."""
        for key in self._ahead - needed:
            works = self._works.get(key, ())
            if len(works) == 1 and works[0].cancel():
                self._reading.counts.ahead -= 1
                self._drop(key)
