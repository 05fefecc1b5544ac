"""Replay a trace against allocators: what each reserves where there is room, and the least memory that serves it.

The second figure decides: an allocator that keeps free memory while there is room, and gives it back when there is
none, does not need it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from dayzero.errors import UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.pool import Allocator, BestFit, Buddy, OutOfMemory, Slab
from dayzero.schema.base import Noun

from .caching import CachingModel
from .trace import Trace

_STEP = 512
_FINE = 400
"""The least memory is found to one part in so many."""


class Replayable(Protocol):
    """An allocator as a replay uses it."""

    @property
    def peak_reserved(self) -> int:
        """Most bytes that it held of the device."""

    @property
    def releases(self) -> int:
        """How often it gave memory back because there was no more."""

    def take(self, nbytes: int, stream: int = 0) -> Any:
        """Allocate. Raises OutOfMemory."""

    def give(self, block: Any) -> None:
        """Free."""


class Pool:
    """One of our allocators: what it holds is what was in a block once. Streams share it."""

    releases = 0

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.give = allocator.give

    @property
    def peak_reserved(self) -> int:
        return self.allocator.statistics().touched

    def take(self, nbytes: int, stream: int = 0) -> Any:
        return self.allocator.take(nbytes)


class Replayed(Noun, frozen=True, kw_only=True):
    """How one allocator did on a trace. Sizes in bytes."""

    allocator: str
    """Its name."""
    kind: str
    """pool: ours, and real; model: computed by the rules of torch's; device: torch's on a device here."""
    reserved: int
    """Most that it held where there is room."""
    needs: int
    """The least memory with which the trace runs to its end; 0: not measured."""
    releases: int
    """How often it gave memory back to the device with that little memory."""
    rounding: float
    """Internal fragmentation: the share of what was allocated at the peak that nobody asked for; -1: not known."""
    fragmentation: float
    """The share of the memory that it needs (reserved, where that is not measured) that is not in use at the peak."""
    seconds: float
    """Time of one replay with room. Of a model it is not the time of what it models; 0 there."""


class Replay(Noun, frozen=True, kw_only=True):
    """A trace and how the allocators did on it, the one that needs the least memory first."""

    trace: str
    """Its name."""
    allocations: int
    """In it."""
    frees: int
    """In it."""
    peak: int
    """Most bytes in use at a time: no allocator needs less."""
    streams: int
    """Streams that allocated. Pools share memory between streams, which then have to wait for each other."""
    results: tuple[Replayed, ...]
    """One for each allocator."""


Maker = Callable[[int], Replayable]
"""Makes an allocator of so many bytes."""


def candidates(trace: Trace) -> Iterator[tuple[str, str, Maker]]:
    """(name, kind, maker) of the allocators that a trace can be replayed against."""
    yield "best fit", "pool", lambda nbytes: Pool(BestFit(nbytes))
    yield "buddy", "pool", lambda nbytes: Pool(Buddy(nbytes))
    sizes = {int(size) for size in trace.sizes}
    if len(sizes) == 1:
        (size,) = sizes
        yield "slab", "pool", lambda nbytes: Pool(Slab(nbytes, size))
    yield "torch caching", "model", CachingModel
    yield "torch expandable", "model", partial(CachingModel, expandable=True)


def replay(trace: Trace, *, progress: Progress = SILENT) -> Replay:
    """A trace against all allocators that there are here. Raises UsageError for one that none of them serves."""
    found = []
    for name, kind, make in candidates(trace):
        progress.update(name)
        found.append(_one(trace, name, kind, make))
    found += on_device(trace)
    count = len(trace.sizes)
    return Replay(
        trace=trace.name, allocations=count, frees=len(trace.events) - count, peak=trace.peak,
        streams=len(set(trace.streams.values.tolist())) or 1,
        results=tuple(sorted(found, key=lambda one: (one.needs or one.reserved, one.reserved))))  # fmt: skip


def _one(trace: Trace, name: str, kind: str, make: Maker) -> Replayed:
    room = 1 << (4 * trace.peak + 2**26).bit_length()
    roomy = make(room)
    begin = time.perf_counter()
    if not served(trace, roomy):
        raise UsageError(f"{name} cannot serve {trace.name}", "record a trace with sizes of memory")
    seconds = time.perf_counter() - begin
    needs, tight = least(trace, make, max(roomy.peak_reserved, trace.peak))
    rounding = -1.0
    if isinstance(roomy, Pool):
        now = roomy.allocator.statistics()
        rounding = 1 - now.peak_requested / now.peak_allocated
    return Replayed(
        allocator=name, kind=kind, reserved=roomy.peak_reserved, needs=needs, releases=tight.releases,
        rounding=rounding, fragmentation=1 - trace.peak / needs,
        seconds=seconds if kind == "pool" else 0.0)


def served(trace: Trace, allocator: Replayable) -> bool:
    """Replay a trace once. Whether there was room for all of it."""
    live: list[Any] = []
    take, give = allocator.take, allocator.give
    streams = trace.streams.values.tolist() or [0] * len(trace.sizes)
    try:
        for event in trace.events.values.tolist():
            if event > 0:
                live.append(take(event, streams[len(live)]))
            else:
                give(live[-event - 1])
                live[-event - 1] = None
    except OutOfMemory:
        return False
    return True


def least(trace: Trace, make: Maker, enough: int) -> tuple[int, Replayable]:
    """The least memory that serves a trace, and the allocator that did it; found by bisection to 1/400 of the peak, so
    that an allocator for which more memory is not always better may do with less."""
    step = max(_STEP, trace.peak // _FINE // _STEP * _STEP)
    low, high = trace.peak // step, -(-enough // step)  # low may be too little, high is tried first
    best = make(high * step)
    while not served(trace, best):
        low, high = high, 2 * high
        best = make(high * step)
    while low < high - 1:
        middle = (low + high) // 2
        tried = make(middle * step) if middle else None
        if tried is not None and served(trace, tried):
            high, best = middle, tried
        else:
            low = middle
    return high * step, best


def on_device(trace: Trace) -> Iterator[Replayed]:
    """torch's own allocator, where there is an accelerator whose memory it counts."""
    import torch

    if not torch.accelerator.is_available():
        return
    device = torch.accelerator.current_accelerator()
    memory = torch.accelerator.memory
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    before = memory.memory_reserved()
    live: list[torch.Tensor | None] = []
    begin = time.perf_counter()
    for event in trace.events.values.tolist():
        if event > 0:
            live.append(torch.empty(event, dtype=torch.uint8, device=device))
        else:
            live[-event - 1] = None
    seconds = time.perf_counter() - begin
    reserved = memory.max_memory_reserved() - before
    live.clear()
    memory.empty_cache()
    if reserved > 0:
        yield Replayed(allocator="torch caching", kind="device", reserved=reserved, needs=0, releases=0, rounding=-1.0,
                       fragmentation=1 - trace.peak / reserved, seconds=seconds)
