"""Bytes of part files, and the numbers that they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import StoreError
from dayzero.floats import FLOATS, decode

Array = NDArray[Any]
INTEGERS = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4", "I16": "<i2", "U16": "<u2", "I8": "i1", "U8": "u1"}
"""dtypes of whole numbers, and how they are stored."""
_AS_STORED = {"F64": "<f8", "F32": "<f4", "C64": "<c8", "BOOL": "?"}
AGAIN = "record it again, or get the files again"
_OPEN = 64
"""Files that stay open while nobody reads them: a large dump has more of them than a process may open."""
_AHEAD = 8 * 2**20
"""Bytes behind a read that the system is asked to fetch meanwhile."""


class Files:
    """Part files, open while they are used; reading may be done by several threads."""

    def __init__(self) -> None:
        self._open: dict[Path, _Open] = {}
        self._lock = Lock()
        self.nbytes = 0
        """Bytes that were read."""

    def read(self, path: Path, start: int, count: int) -> NDArray[np.uint8]:
        """Raises StoreError when the file is shorter or cannot be read."""
        data, done = np.empty(count, np.uint8), 0
        try:
            with self._using(path) as file:
                while done < count and (more := os.preadv(file.handle, [data.data[done:]], start + done)):
                    done += more
                file.fetch(start + count)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}", "check the disk") from None
        if done < count:
            raise StoreError(f"{path} is damaged: it ends at byte {start + done}", AGAIN)
        with self._lock:
            self.nbytes += count
        return data

    @contextmanager
    def _using(self, path: Path) -> Iterator[_Open]:
        with self._lock:
            file = self._open.pop(path, None) or _Open(path)
            self._open[path] = file  # the newest is the last
            file.users += 1
        try:
            yield file
        finally:
            with self._lock:
                file.users -= 1
                self._close(_OPEN)

    def _close(self, kept: int) -> None:
        """The oldest that nobody reads, but for so many."""
        for path in [path for path, each in self._open.items() if not each.users][: max(0, len(self._open) - kept)]:
            os.close(self._open.pop(path).handle)

    def close(self) -> None:
        """Close all of them; a later read opens them again."""
        self._close(0)


class _Open:
    """A file that is open."""

    def __init__(self, path: Path) -> None:
        self.handle, self.users, self._asked = os.open(path, os.O_RDONLY), 0, 0

    def fetch(self, end: int) -> None:
        """Ask for what lies behind; half of it is left when the next is asked for."""
        if self._asked - end < _AHEAD // 2 or self._asked > end + _AHEAD:
            first = self._asked if end <= self._asked <= end + _AHEAD else end
            os.posix_fadvise(self.handle, first, end + _AHEAD - first, os.POSIX_FADV_WILLNEED)
            self._asked = end + _AHEAD


def decoded(raw: NDArray[np.uint8], dtype: str) -> Array:
    """Flat values: floats as F32 or F64, integers as int64. Raises StoreError for a dtype without a meaning here."""
    if dtype in _AS_STORED:
        return raw.view(_AS_STORED[dtype])
    if dtype in INTEGERS:
        return raw.view(INTEGERS[dtype]).astype(np.int64)
    if dtype not in FLOATS:
        raise StoreError(f"values of dtype {dtype} cannot be read", "record it in another dtype")
    return decode(raw, dtype)
