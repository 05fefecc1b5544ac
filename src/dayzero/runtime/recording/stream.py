"""What was taken from a model, on its way to the disk: a thread digests and writes it while the model goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from dayzero.runtime.golden import Writer
from dayzero.runtime.timeline.background import Background, Work
from dayzero.schema.golden import Entry, Pass, Statistics

from .values import as_bytes

WAITING = 256 * 2**20
"""Bytes that may wait to be written before the model has to."""
_JOBS = 4096
_TOGETHER, _BYTES = 128, 8 * 2**20
"""Jobs, and bytes of them, that are handed over at once."""


class Taken:
    """One tensor on its way. `entry` is complete once it has been written."""

    def __init__(self, entry: Entry, statistics: Callable[[], Statistics], kept: torch.Tensor | None,
                 arrived: Callable[[], Any] | None) -> None:
        """`kept`: on the host; `arrived`: waits until its values are there."""
        self.entry, self.kept = entry, kept
        self._statistics, self._arrived = statistics, arrived

    def write(self, writer: Writer) -> None:
        """Into the dump."""
        if self._arrived is not None:
            self._arrived()
        entry = msgspec.structs.replace(self.entry, statistics=self._statistics())
        self.entry = writer.add(entry, None if self.kept is None else as_bytes(self.kept))
        self.kept = self._arrived = None


def _all(jobs: list[Callable[[], Any]]) -> None:
    for job in jobs:
        job()


class Stream:
    """Writes in the order in which things come in. What fails is told by `failed`, and raised by `close`."""

    def __init__(self, writer: Writer, *, waiting: int = WAITING) -> None:
        self.writer = writer
        self._thread = Background("dump", limit=_JOBS)
        self._limit, self._held = waiting, 0
        self._jobs: list[Callable[[], Any]] = []
        self._fresh = 0
        self._under_way: deque[tuple[Work, int]] = deque()
        self.failed: BaseException | None = None

    def begin(self, made: Pass) -> None:
        """A pass."""
        self._put(lambda: self.writer.begin(made), 0)

    def add(self, taken: Taken) -> None:
        """A tensor. Waits while there is too much on its way."""
        self._put(lambda: taken.write(self.writer), taken.kept.nbytes if taken.kept is not None else 0)

    def again(self, facts: dict[str, Any], before: Taken) -> None:
        """One that is an earlier one but for these facts: its values are those."""
        self._put(lambda: self.writer.add(msgspec.structs.replace(before.entry, **facts)), 0)

    def pause(self) -> None:
        """At the end of a pass: write what has come in, if that was not done for a while."""
        self._put(self.writer.flush_now_and_then, 0)
        self._send()

    def _put(self, job: Callable[[], Any], nbytes: int) -> None:
        if self.failed is not None:
            return
        self._jobs.append(job)
        self._fresh += nbytes
        if len(self._jobs) >= _TOGETHER or self._fresh >= _BYTES:
            self._send()

    def _send(self) -> None:
        """Hand over what has come in together: to wake the thread for each costs more than most of them."""
        jobs, nbytes = self._jobs, self._fresh
        if jobs:
            self._jobs, self._fresh = [], 0
            self._under_way.append((self._thread.submit(_all, jobs), nbytes))
            self._held += nbytes
        while self._under_way and (self._held > self._limit or self._under_way[0][0].done()):
            self._wait()

    def _wait(self) -> None:
        work, nbytes = self._under_way.popleft()
        error = work.exception()
        self._held -= nbytes
        self.failed = self.failed or error

    def close(self, failure: str = "") -> None:
        """Write the rest. `failure`: why recording ended early. Raises StoreError when something could not be written;
        the dump then says that it is not finished."""
        if self.failed is None:
            self._send()
        while self._under_way:
            self._wait()
        try:
            if self.failed is not None:
                raise self.failed
            if failure:
                self.writer.abandon(failure)
            else:
                self.writer.finish()
        except BaseException as error:
            self.writer.abandon(str(error))
            raise
        finally:
            self._thread.close()
