"""One way to do the same work on many files at once, and to stop promptly when one fails or the user interrupts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dayzero.progress import Progress

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[T], R], items: Iterable[T], workers: int | None = None) -> Iterator[R]:
    """`work` of each item, in order. After the first exception nothing more is started, and it is raised."""
    pool = ThreadPoolExecutor(workers or min(8, 2 * (os.cpu_count() or 1)))
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Meter:
    """Adds up the bytes that several threads have moved, and tells."""

    def __init__(self, text: str, total: int, progress: Progress) -> None:
        self._text, self._total, self._done, self._progress = text, total, 0, progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """`count` more bytes are done."""
        with self._lock:
            self._done += count
            self._progress.update(self._text, self._done, self._total)
