"""Streams: a thread on the host; torch's own streams on a device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_all
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")


class ThreadStream:
    """Implements `Stream` by one thread, which ends with the program or when nobody has the stream any more."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "stream")
        self._lock = threading.Lock()
        self._open: list[Future[object]] = []

    def run(self, work: Callable[[], T]) -> Future[T]:
        """See `Stream`. With the settings of gradients that hold here."""
        gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def inside() -> T:
            with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
                return work()

        return self._submit(inside)

    def wait(self, other: ThreadStream | CallerStream) -> None:
        """See `Stream`."""
        for each in other.pending():
            self._submit(partial(wait_all, [each]))

    def synchronize(self) -> None:
        """See `Stream`."""
        for each in self.pending():
            each.result()

    def pending(self) -> list[Future[object]]:
        """What is not done, or failed."""
        with self._lock:
            self._open = [each for each in self._open if not each.done() or each.exception()]
            return list(self._open)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        future = self._pool.submit(work)
        with self._lock:
            self._open = [each for each in self._open if not each.done() or each.exception()]
            self._open.append(future)  # type: ignore[arg-type]
        return future


class CallerStream:
    """Implements `Stream` by the thread that calls: the host's current stream. All is done when `run` returns."""

    def run(self, work: Callable[[], T]) -> Future[T]:
        """See `Stream`."""
        future: Future[T] = Future()
        future.set_result(work())
        return future

    def wait(self, other: ThreadStream | CallerStream) -> None:
        """See `Stream`."""
        wait_all(other.pending())

    def synchronize(self) -> None:
        """Nothing is left to do."""

    def pending(self) -> list[Future[object]]:
        """Nothing."""
        return []


class DeviceStream:
    """Implements `Stream` by a stream of torch: work is begun at once, and the device does it in order."""

    def __init__(self, stream: torch.Stream) -> None:
        self.stream = stream

    def run(self, work: Callable[[], T]) -> Future[T]:
        """See `Stream`."""
        future: Future[T] = Future()
        with self.stream:
            future.set_result(work())
        return future

    def wait(self, other: DeviceStream) -> None:
        """See `Stream`."""
        self.stream.wait_stream(other.stream)

    def synchronize(self) -> None:
        """See `Stream`."""
        self.stream.synchronize()
