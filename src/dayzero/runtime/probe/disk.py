"""How fast a file is read: from the disk, from the system's cache, and past that cache. Without torch.

The file has no name from the moment that it is made, so nothing is left of it however the process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path

_BYTES = 1 << 27
_CHUNK = 1 << 22
ROUNDS = 3


def disk_reads(folder: Path) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(bytes a second in every round for disk_read.cold, .warm and .direct, what cannot be measured -> why)."""
    found: dict[str, list[float]] = {"disk_read.cold": [], "disk_read.warm": [], "disk_read.direct": []}
    missing: dict[str, str] = {}
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _fill(file.fileno())
            for _ in range(ROUNDS):
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    found["disk_read.cold"].append(_read(file.fileno()))
                found["disk_read.warm"].append(_read(file.fileno()))
            _direct(file.fileno(), found["disk_read.direct"], missing)
    except OSError as error:
        why = error.strerror or error
        return {}, {"disk_read": f"no {_BYTES >> 20} MiB can be written and read in {folder}: {why}"}
    if not found["disk_read.cold"]:
        missing["disk_read.cold"] = "this system drops no single file from its cache"
    return {name: values for name, values in found.items() if values}, missing


def _fill(file: int) -> None:
    """Random bytes, which no file system makes smaller."""
    chunk = os.urandom(_CHUNK)
    for _ in range(_BYTES // _CHUNK):
        view = memoryview(chunk)
        while view:
            view = view[os.write(file, view):]
    os.fsync(file)


def _read(file: int) -> float:
    buffer = mmap.mmap(-1, _CHUNK)  # page-aligned, as direct reads need it
    start = time.perf_counter()
    with memoryview(buffer) as view:
        for offset in range(0, _BYTES, _CHUNK):
            os.preadv(file, [view], offset)
    return _BYTES / (time.perf_counter() - start)


def _direct(file: int, rounds: list[float], missing: dict[str, str]) -> None:
    if not hasattr(os, "O_DIRECT"):
        missing["disk_read.direct"] = "this system has no reads past its cache"
        return
    try:
        again = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        missing["disk_read.direct"] = f"the file system refuses them: {error.strerror}"
        return
    try:
        rounds += [_read(again) for _ in range(ROUNDS)]
    except OSError as error:
        missing["disk_read.direct"] = f"the file system refuses them: {error.strerror}"
    finally:
        os.close(again)
