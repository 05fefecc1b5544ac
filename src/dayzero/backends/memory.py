"""Memory of a device, as one process sees it: the host's from the system, a device's from torch's allocator."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any

import torch

from dayzero.errors import NotPossible, UsageError

from . import host


def _checked(size: int | None) -> int | None:
    if size is not None and size < 1:
        raise UsageError(f"not a size of memory: {size} bytes", "give 1 or more, or None for no cap")
    return size


class HostMemory:
    """Implements `Memory`. `used` is what no file backs: mapped weights are not in it. A cap limits what the process
    may reserve (RLIMIT_DATA), which is more than it has touched."""

    _cap: int | None = None
    """Of this process: there is one host."""

    def total(self) -> int:
        """What this process holds and what is available, or the cap."""
        whole = self.used() + host.available_memory()
        return whole if HostMemory._cap is None else min(whole, HostMemory._cap)

    def free(self) -> int:
        """Total without what is used."""
        return max(0, self.total() - self.used())

    def used(self) -> int:
        """Anonymous and shared memory of this process."""
        return host.private_memory()

    def peak(self) -> int:
        """Most resident memory, files that are mapped included: the system does not tell them apart afterwards."""
        return host.peak_memory()

    def reset_peak(self) -> None:
        """Raises NotPossible where the system cannot."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            raise NotPossible(f"the system keeps the peak: {error.strerror}") from None

    def empty_cache(self) -> None:
        """Give free pages of the allocator back to the system."""
        host.trim()

    def cap(self, size: int | None) -> None:
        """See `Memory`; allocations fail with RuntimeError or MemoryError."""
        size = _checked(size)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = hard if size is None else host.reserved_memory() + max(0, size - self.used())
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        HostMemory._cap = size


class DeviceMemory:
    """Implements `Memory` by torch's allocator of the current accelerator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def total(self) -> int:
        """As the device reports."""
        return int(torch.accelerator.get_memory_info(self.device)[1])

    def free(self) -> int:
        """As the device reports, and what torch keeps for later."""
        kept = torch.accelerator.memory_reserved(self.device) - self.used()
        return int(torch.accelerator.get_memory_info(self.device)[0]) + int(kept)

    def used(self) -> int:
        """In tensors of this process."""
        return int(torch.accelerator.memory_allocated(self.device))

    def peak(self) -> int:
        """In tensors of this process."""
        return int(torch.accelerator.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """See `Memory`."""
        torch.accelerator.reset_peak_memory_stats(self.device)

    def empty_cache(self) -> None:
        """See `Memory`."""
        torch.accelerator.empty_cache()

    def cap(self, size: int | None) -> None:
        """See `Memory`; by the share that the device's module of torch takes."""
        size = _checked(size)
        module: Any = torch.get_device_module(self.device)
        limit = getattr(module, "set_per_process_memory_fraction", None)
        if limit is None:
            raise NotPossible(f"torch cannot limit the memory of {self.device.type} devices")
        total = self.total()
        with contextlib.suppress(AttributeError):
            total = module.get_device_properties(self.device.index).total_memory
        limit(1.0 if size is None else min(1.0, size / total), self.device.index)
