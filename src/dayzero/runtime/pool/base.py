"""What every allocator is: offsets into a range of bytes, handed out and taken back, with exact accounts.

An allocator knows no memory. The range may be an `Arena`, a file or a device; who takes a block decides.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from dayzero.errors import StageError, UsageError
from dayzero.units import format_bytes


class Block(NamedTuple):
    """A range that was handed out. It is the object itself that is given back, not one that is equal to it."""

    offset: int
    """First byte."""
    size: int
    """Bytes that belong to it."""
    requested: int
    """Bytes that were asked for."""


class OutOfMemory(StageError):  # noqa: N818  (as torch names its own)
    """No free range is long enough. All sizes in bytes."""

    def __init__(self, asked: int, free: int, largest: int, capacity: int) -> None:
        self.asked, self.free, self.largest, self.capacity = asked, free, largest, capacity
        cause = "no free range is so long" if free >= asked else "the pool is full"
        super().__init__(
            f"the pool has no room for {format_bytes(asked)}: {cause}; {format_bytes(free)} of "
            f"{format_bytes(capacity)} are free, at most {format_bytes(largest)} in one piece",
            "give the pool more memory, or keep less in it at a time")


class BlockError(ValueError):
    """A block was given back twice, or to an allocator that it is not from. Never a user's fault."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The accounts of an allocator at one moment. Bytes unless said otherwise."""

    capacity: int
    """The whole range."""
    allocated: int
    """In blocks that are handed out."""
    requested: int
    """What was asked for of these."""
    largest_free: int
    """The longest free range: the largest request that succeeds now, apart from rounding."""
    peak_allocated: int
    """Most that was ever allocated."""
    peak_requested: int
    """Most that was ever requested."""
    touched: int
    """Bytes outside of the range in which no block ever was: the memory that was really used."""
    live: int
    """Blocks that are handed out."""
    takes: int
    """Blocks ever handed out."""
    gives: int
    """Blocks ever given back."""
    refusals: int
    """Requests that found no room."""

    @property
    def free(self) -> int:
        """Bytes in no block."""
        return self.capacity - self.allocated

    @property
    def internal(self) -> float:
        """Internal fragmentation: the share of allocated bytes that nobody asked for."""
        return 1 - self.requested / self.allocated if self.allocated else 0.0

    @property
    def external(self) -> float:
        """External fragmentation: the share of free bytes outside of the longest free range."""
        return 1 - self.largest_free / self.free if self.free else 0.0


class Allocator(ABC):
    """Hands out blocks of `capacity` bytes that begin at multiples of `alignment`. Safe to use from several threads.

    Raises UsageError for sizes that make no allocator.
    """

    def __init__(self, capacity: int, alignment: int) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise UsageError(f"an alignment of {alignment} bytes is no power of two", "choose 1, 2, 4, ... 512, ...")
        if capacity < alignment:
            raise UsageError(f"a pool of {capacity} bytes holds no block of {alignment}", "give it more memory")
        self.capacity, self.alignment = capacity, alignment
        self._lock = threading.Lock()
        self._live: dict[int, Block] = {}
        self._allocated = self._requested = 0
        self._peak_allocated = self._peak_requested = 0
        self._low, self._high = 0, capacity  # no block was ever between
        self._takes = self._gives = self._refusals = 0
        self._clear()

    def take(self, nbytes: int) -> Block:
        """A block of at least `nbytes`. Raises OutOfMemory, and UsageError for less than one byte."""
        if nbytes < 1:
            raise UsageError(f"a block of {nbytes} bytes was asked for", "ask for at least one byte")
        with self._lock:
            found = self._reserve(nbytes)
            if found is None:
                self._refusals += 1
                raise OutOfMemory(nbytes, self.capacity - self._allocated, self._largest(), self.capacity)
            offset, size = found
            block = Block(offset, size, nbytes)
            self._live[offset] = block
            self._takes += 1
            self._allocated += size
            self._requested += nbytes
            if self._allocated > self._peak_allocated:
                self._peak_allocated = self._allocated
            if self._requested > self._peak_requested:
                self._peak_requested = self._requested
            if offset + size > self._low and offset < self._high:
                self._touch(offset, offset + size)
            return block

    def give(self, block: Block) -> None:
        """Take a block back. Raises BlockError when it is not handed out, or is not from here."""
        with self._lock:
            if self._live.get(block.offset) is not block:
                raise BlockError(f"{block} is not handed out by this pool: it was given back before, or is another's")
            del self._live[block.offset]
            self._gives += 1
            self._allocated -= block.size
            self._requested -= block.requested
            self._release(block.offset, block.size)

    def fits(self, nbytes: int) -> bool:
        """Whether `take(nbytes)` would succeed now."""
        with self._lock:
            return self._fits(nbytes)

    def statistics(self) -> Statistics:
        """The accounts now."""
        with self._lock:
            return Statistics(
                capacity=self.capacity, allocated=self._allocated, requested=self._requested,
                largest_free=self._largest(), peak_allocated=self._peak_allocated,
                peak_requested=self._peak_requested, touched=self.capacity - (self._high - self._low),
                live=len(self._live), takes=self._takes, gives=self._gives, refusals=self._refusals)  # fmt: skip

    def reset(self) -> None:
        """Take everything back at once; peaks and counts stay. Blocks from before are then foreign."""
        with self._lock:
            self._gives += len(self._live)
            self._live.clear()
            self._allocated = self._requested = 0
            self._clear()

    def _touch(self, begin: int, end: int) -> None:
        if begin > self._low and end >= self._high:
            self._high = begin
        else:
            self._low = min(end, self._high)

    @abstractmethod
    def _clear(self) -> None:
        """Make everything free."""

    @abstractmethod
    def _reserve(self, nbytes: int) -> tuple[int, int] | None:
        """(offset, size) of a free range that is now taken; None: there is none."""

    @abstractmethod
    def _release(self, offset: int, size: int) -> None:
        """Make the range of a block free."""

    @abstractmethod
    def _largest(self) -> int:
        """Bytes of the longest free range."""

    def _fits(self, nbytes: int) -> bool:
        return self._largest() >= nbytes


def round_up(value: int, step: int) -> int:
    """The multiple of a power of two at or above a value."""
    return (value + step - 1) & -step
