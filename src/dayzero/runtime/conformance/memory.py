"""Check: what is allocated is counted, what is freed comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch

from dayzero.backends import Backend
from dayzero.units import format_bytes

from .nouns import require

SIZE = 64 << 20
"""Bytes of a test allocation: above what C libraries keep."""
SLACK = 12 << 20
"""Bytes by which counts may differ: allocators round, and the host counts whole processes."""


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Counts, and that operators keep nothing."""
    yield "counts", lambda: _counts(backend)
    yield "operators", lambda: _operators(backend)


def allocate(device: torch.device, size: int = SIZE) -> torch.Tensor:
    """`size` bytes that are really written."""
    return torch.full((size,), 1, dtype=torch.uint8, device=device)


def settle(backend: Backend) -> None:
    """Everything that can be freed is."""
    gc.collect()
    backend.synchronize()
    backend.memory().empty_cache()


def _counts(backend: Backend) -> str:
    memory, device = backend.memory(), backend.device()
    settle(backend)
    before, free = memory.used(), memory.free()
    require(0 < free <= memory.total(), f"{free} bytes are free of {memory.total()}")
    held = allocate(device)
    backend.synchronize()
    grown = memory.used() - before
    require(abs(grown - SIZE) <= SLACK, f"{SIZE} bytes were allocated, and used() grew by {grown}")
    require(memory.peak() >= before + SIZE - SLACK, f"peak() is {memory.peak()}, below what was used")
    del held
    settle(backend)
    left = memory.used() - before
    require(left <= SLACK, f"{left} of {SIZE} bytes are still counted after they were freed")
    memory.reset_peak()
    require(memory.peak() < before + SIZE or backend.device_type == "cpu",
            f"peak() is still {memory.peak()} after reset_peak()")
    return f"{format_bytes(SIZE)} counted as {format_bytes(grown)} and given back, of {format_bytes(memory.total())}"


def _operators(backend: Backend) -> str:
    """Sums of 16 MiB, of which those that are not referred to any more must be gone."""
    memory, device = backend.memory(), backend.device()
    matrix = torch.ones(2048, 2048, device=device)
    rounds, each = 12, matrix.numel() * 4

    def work() -> None:
        for _ in range(rounds):
            product = torch.relu(matrix) @ matrix[:, :16]
            torch.softmax(matrix + product.sum(), -1)

    work()
    settle(backend)
    before = memory.used()
    work()
    settle(backend)
    left = memory.used() - before
    require(left <= SLACK, f"{left} bytes are kept after operators whose results nobody holds")
    return f"{format_bytes(3 * rounds * each)} of results came and went"
