"""One way to do the same work on many files at once, and to stop promptly when one fails or the user interrupts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

from dayzero.progress import Progress

WORKERS = min(8, 2 * (os.cpu_count() or 1))
"""Files that are worked on at once."""
T = TypeVar("T")
R = TypeVar("R")


class Meter:
    """Adds up the bytes that several threads have moved, and tells; stops them where they tell it."""

    def __init__(self, text: str, total: int, progress: Progress) -> None:
        self._text, self._total, self._done, self._progress = text, total, 0, progress
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, count: int) -> None:
        """`count` more bytes are done. Raises CancelledError, in the thread that calls, after `stop`."""
        if self._stopped:
            raise CancelledError
        with self._lock:
            self._done += count
            self._progress.update(self._text, self._done, self._total)

    def stop(self) -> None:
        """Make every thread stop at its next `add`."""
        self._stopped = True


def each(work: Callable[[T], R], items: Iterable[T], meter: Meter | None = None) -> Iterator[R]:
    """`work` of each item, in order. After the first exception nothing more is started, what runs and tells `meter` is
    stopped, and the exception is raised.
    """
    pool = ThreadPoolExecutor(WORKERS)
    try:
        yield from pool.map(work, items)
    except BaseException:
        if meter:
            meter.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
