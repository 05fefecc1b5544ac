"""The most private memory that a rank takes, and what it was doing then.

Private is what no file backs (RssAnon + RssShmem of /proc/self/status): a checkpoint that is mapped into memory is
not counted until it is copied, which `load` does, so that the figure means what it would mean on a device.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable

from dayzero.backends import host

_PERIOD = 0.01  # seconds


class PeakSampler:
    """Samples in a thread of its own while it is entered; a peak shorter than 10 ms can be missed."""

    def __init__(self, phase: Callable[[], str]) -> None:
        self._phase = phase
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.base = self.peak = host.private_memory()
        self.during = "before"

    def __enter__(self) -> PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._end.wait(_PERIOD):
            self._sample()

    def _sample(self) -> None:
        now = host.private_memory()
        if now > self.peak:
            self.peak, self.during = now, self._phase()


def release_unused() -> None:
    """Give memory that Python and the C library keep for later back to the system, where they can."""
    gc.collect()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
