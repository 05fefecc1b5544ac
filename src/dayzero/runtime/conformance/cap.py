"""Check: beyond a cap nothing is allocated, and after it everything is as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dayzero.backends import Backend
from dayzero.errors import NotPossible
from dayzero.units import format_bytes

from .memory import SIZE, SLACK, allocate, settle
from .nouns import Failure, Skip, require

BEYOND = 4
"""Allocations of `SIZE` that are asked for at once under the cap. Where it limits what a whole process reserves, the
stacks of threads that end meanwhile give room back: more than those must be asked for."""


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """One."""
    yield "", lambda: _cap(backend)


def _cap(backend: Backend) -> str:
    memory, device = backend.memory(), backend.device()
    settle(backend)
    before = memory.used()
    limit = before + SIZE // 2
    try:
        memory.cap(limit)
    except NotPossible as reason:
        raise Skip(reason.reason) from None
    try:
        require(memory.total() <= limit + (1 << 20), f"total() is {memory.total()} under a cap of {limit}")
        left = memory.free()
        require(abs(left - SIZE // 2) <= SLACK, f"free() is {left} under a cap that leaves {SIZE // 2}")
        try:
            held = allocate(device, BEYOND * SIZE)
        except (RuntimeError, MemoryError) as error:
            told = type(error).__name__
        else:
            del held
            raise Failure(f"{BEYOND * SIZE} bytes were allocated under a cap that leaves {SIZE // 2}")
    finally:
        memory.cap(None)
    allocate(device)
    require(memory.total() > limit, f"total() is still {memory.total()} after a cap of {limit} has ended")
    return f"{format_bytes(BEYOND * SIZE)} under a cap that leaves {format_bytes(SIZE // 2)}: {told}"
