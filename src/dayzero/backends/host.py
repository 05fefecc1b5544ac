"""Facts about this host that the operating system states: processor, usable cores, available memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from pathlib import Path

_FALLBACK_CACHE = 32 << 20


def identity() -> tuple[str, str]:
    """Vendor and model of the processor in its own words; what it does not state is empty."""
    text = _read("/proc/cpuinfo")
    vendor = _field(text, "vendor_id") or _field(text, "CPU implementer") or platform.processor()
    return vendor, _field(text, "model name") or _field(text, "CPU part")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_bytes() -> int:
    """Size of the last cache before memory; 32 MiB when the system does not state it."""
    sizes = [_read(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.strip()[:-1]) << 10 for size in sizes if size.strip().endswith("K")), default=_FALLBACK_CACHE)


def available_memory() -> int:
    """Bytes that new processes can take without swapping: MemAvailable, or less where the control group allows less.

    Zero when the system states neither.
    """
    available = _kib(_read("/proc/meminfo"), "MemAvailable")
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    return min(available, int(limit) - int(used)) if limit.isdecimal() and used.isdecimal() else available


def private_memory() -> int:
    """Bytes of this process's memory that no file backs: RssAnon + RssShmem. Mapped weights are not among them."""
    status = _read("/proc/self/status")
    return _kib(status, "RssAnon") + _kib(status, "RssShmem")


def peak_memory() -> int:
    """Most resident bytes that this process has had."""
    return _kib(_read("/proc/self/status"), "VmHWM")


def reserved_memory() -> int:
    """Bytes of private memory that this process has reserved, touched or not: what RLIMIT_DATA counts."""
    return _kib(_read("/proc/self/status"), "VmData")


def trim() -> None:
    """Give free pages of the C library's allocator back to the system, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _read(path: str | Path) -> str:
    """The text of a file that the system makes; empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _kib(text: str, name: str) -> int:
    return int((_field(text, name) or "0 kB").split()[0]) << 10
