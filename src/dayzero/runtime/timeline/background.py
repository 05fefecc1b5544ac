"""Work beside computing: a thread, or a stream of a device, on which loads, offload traffic and collectives go on.

What fails there is raised where its result is asked for, and at the latest where the work is drained.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from .recorder import OFF, Timeline


class Stream(Protocol):
    """What is needed of a backend's stream."""

    def run(self, function: Callable[[], Any]) -> Future[Any]:
        """Put the work of a function on the stream."""

    def synchronize(self) -> None:
        """Wait for all of it."""


class Work(Future[Any]):
    """The result of what was submitted. Knows whether anybody has looked at how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned; raises what it raised, CancelledError, TimeoutError."""
        value = super().exception(timeout)
        self.seen = True
        if value is not None:
            raise value
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it raised, or None."""
        found = super().exception(timeout)
        self.seen = True
        return found


def _as_here(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that records gradients, and makes inference tensors, where the thread that submits it would."""
    torch = sys.modules.get("torch")
    if torch is None:
        return function
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def inside() -> Any:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return function()

    return inside


def _attempt(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # it is raised again by whoever asked for the work
        return None, error


_Job = tuple[Work, Callable[[], Any], str, str, int]


class Background:
    """`workers` threads that take work in the order in which it was submitted; with one, it also ends in that order.

    With `stream`, what the functions do to a device is put there, and a span lasts until the device has done it.
    `with` drains; where an exception leaves it, what is queued is cancelled and only what runs is waited for.
    """

    def __init__(self, name: str, *, timeline: Timeline = OFF, limit: int = 64, workers: int = 1,
                 stream: Stream | None = None) -> None:
        self.name, self._timeline, self._limit, self._stream = name, timeline, limit, stream
        self._state = threading.Condition()  # of everything below
        self._jobs: deque[_Job] = deque()
        self._running = 0
        self._failed: list[Work] = []
        self._closed = False
        names = [name] if workers == 1 else [f"{name} {index}" for index in range(workers)]
        self._threads = [threading.Thread(target=self._run, name=one, daemon=True) for one in names]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], *args: Any, category: str = "load", name: str = "",
               nbytes: int = 0) -> Work:
        """Have `function(*args)` done; waits while `limit` are queued, except on one of its own threads.

        Raises RuntimeError after `close`.
        """
        work = Work()
        own = threading.current_thread() in self._threads
        with self._state:
            self._state.wait_for(lambda: own or self._closed or len(self._jobs) < self._limit)
            if self._closed:
                raise RuntimeError(f"{self.name} is closed and takes no work")
            self._jobs.append((work, _as_here(partial(function, *args)), category, name or self.name, nbytes))
            self._state.notify_all()
        return work

    def drain(self) -> None:
        """Wait for all that was submitted. Raises the first failure that nobody has looked at."""
        with self._state:
            self._state.wait_for(lambda: not self._jobs and not self._running)
            failed, self._failed = [work for work in self._failed if not work.seen], []
        if failed:
            failed[0].result()

    def close(self, *, cancel: bool = False) -> None:
        """End the threads: after all that was submitted, or only after what runs now. More than once is like once."""
        with self._state:
            self._closed = True
            cancelled = [self._jobs.popleft()[0] for _ in range(len(self._jobs))] if cancel else []
            self._state.notify_all()
        for work in cancelled:
            work.cancel()
            work.set_running_or_notify_cancel()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._running += 1
                self._state.notify_all()
            self._work(*job)
            del job  # it holds what the function was given
            with self._state:
                self._running -= 1
                self._state.notify_all()

    def _work(self, work: Work, function: Callable[[], Any], category: str, name: str, nbytes: int) -> None:
        if not work.set_running_or_notify_cancel():
            return
        try:
            with self._timeline.span(category, name, nbytes=nbytes):
                value = self._done(function)
        except BaseException as error:  # whatever it is, it belongs to whoever asks for the result
            with self._state:
                self._failed = [*(one for one in self._failed if not one.seen), work]
            work.set_exception(error)
        else:
            work.set_result(value)

    def _done(self, function: Callable[[], Any]) -> Any:
        if self._stream is None:
            return function()
        # What fails stays out of the stream, which would raise it again for all that comes after.
        value, error = self._stream.run(partial(_attempt, function)).result()
        self._stream.synchronize()
        if error is not None:
            raise error
        return value

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close(cancel=True)
            return
        try:
            self.drain()
        finally:
            self.close(cancel=True)

