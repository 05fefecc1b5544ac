"""Spans of time, recorded while a rank works: what computed, loaded, offloaded, communicated or waited, and when.

Recording appends one tuple to a queue. A thread writes what has come together every quarter of a second, so the file of
a process that is killed lacks no more than that.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np

from dayzero.errors import UsageError
from dayzero.schema.record import Overlap

from .clocks import clock
from .shares import CATEGORIES, shares
from .trace_file import TraceFile

_PERIOD = 0.25
"""Seconds between two writings."""
_KNOWN = frozenset(CATEGORIES)
_MARK = "mark"


class Span:
    """One `with timeline.span(...)`. `nbytes` may be set inside, where only then it is known."""

    __slots__ = ("_category", "_name", "_start", "_timeline", "args", "nbytes")

    def __init__(self, timeline: Timeline, category: str, name: str, nbytes: int, args: dict[str, Any]) -> None:
        self._timeline, self._category, self._name, self.nbytes, self.args = timeline, category, name, nbytes, args

    def __enter__(self) -> Span:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        end = time.perf_counter_ns()
        line = self._timeline
        try:
            lane = line._local.lane
        except AttributeError:
            lane = line._local.lane = threading.current_thread().name
        line._pending.append((self._category, self._name, self._start, end, lane, self.nbytes, self.args))


class Timeline:
    """The spans of one rank. With `path` they go to a Chrome/Perfetto trace there, which is replaced; without, they
    stay in memory. Any thread may record; `close`, or leaving `with`, writes the last ones. Times are nanoseconds of
    time.perf_counter_ns."""

    records = True
    """Whether anything is kept of what it is told."""

    def __init__(self, path: Path | None = None, *, rank: int = 0) -> None:
        self.path, self.rank = path, rank
        self._pending: deque[tuple[str, str, int, int, str, int, dict[str, Any]]] = deque()
        self._local = threading.local()
        self._flushing = threading.Lock()
        self._kept: dict[tuple[str, str], array[int]] = {}  # starts and ends in turns, by (category, lane)
        self._bytes: Counter[str] = Counter()
        self._lanes: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: TraceFile | None = None
        if path is not None:
            self._file = TraceFile(path, [
                {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}},
                {"name": "clock", "ph": "M", "pid": rank, "args": clock()}])  # fmt: skip
            self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
            self._thread.start()

    def span(self, category: str, name: str = "", *, nbytes: int = 0, **args: Any) -> Span:
        """What is inside of `with` as one span of this thread; `args` are shown with it. Raises UsageError for a
        category that is not in CATEGORIES."""
        if category not in _KNOWN:
            raise UsageError(f"a timeline has no category {category!r}", f"use one of {', '.join(CATEGORIES)}")
        return Span(self, category, name or category, nbytes, args)

    def add(self, category: str, name: str, start_ns: int, end_ns: int, *, lane: str = "", nbytes: int = 0,
            **args: Any) -> None:
        """A span that was timed elsewhere, such as by the events of a stream, whose name is then the lane."""
        if category not in _KNOWN:
            raise UsageError(f"a timeline has no category {category!r}", f"use one of {', '.join(CATEGORIES)}")
        here = lane or threading.current_thread().name
        self._pending.append((category, name, start_ns, end_ns, here, nbytes, args))

    def mark(self, name: str) -> None:
        """This moment. Marks right after a barrier tell `merge` how the clocks of hosts differ."""
        now = time.perf_counter_ns()
        self._pending.append((_MARK, name, now, now, threading.current_thread().name, 0, {}))

    def overlap(self) -> tuple[Overlap, ...]:
        """What was hidden so far, by category."""
        self.flush()
        with self._flushing:
            found = {key: np.array(kept, np.int64).reshape(-1, 2) for key, kept in self._kept.items()}
            return shares(found, self._bytes)

    def reset(self) -> None:
        """Leave what was recorded so far out of `overlap`."""
        self.flush()
        with self._flushing:
            self._kept.clear()
            self._bytes.clear()

    def flush(self) -> None:
        """Write what has been recorded."""
        with self._flushing:
            events: list[dict[str, Any]] = []
            for _ in range(len(self._pending)):
                category, name, start, end, lane, nbytes, args = self._pending.popleft()
                if category != _MARK:
                    self._kept.setdefault((category, lane), array("q")).extend((start, end))
                    self._bytes[category] += nbytes
                if self._file is not None:
                    shown = {"bytes": nbytes, **args} if nbytes else args
                    events += self._events(category, name, start, end, lane, shown)
            if self._file is not None:
                self._file.append(events)

    def close(self) -> None:
        """Write the rest and end the thread that writes. More than once is the same as once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _events(self, category: str, name: str, start: int, end: int, lane: str,
                args: dict[str, Any]) -> list[dict[str, Any]]:
        made = []
        thread = self._lanes.get(lane)
        if thread is None:
            thread = self._lanes[lane] = len(self._lanes)
            made.append({"name": "thread_name", "ph": "M", "pid": self.rank, "tid": thread, "args": {"name": lane}})
        event: dict[str, Any] = {"name": name, "cat": category, "ph": "X", "ts": start / 1000,
                                 "dur": (end - start) / 1000, "pid": self.rank, "tid": thread}
        if category == _MARK:
            event["ph"], event["s"] = "i", "p"
            del event["dur"]
        if args:
            event["args"] = args
        made.append(event)
        return made

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD):
            self.flush()

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _NoSpan(Span):
    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Off(Timeline):
    """Records nothing, so that nobody has to ask whether there is a timeline."""

    records = False

    def span(self, category: str, name: str = "", *, nbytes: int = 0, **args: Any) -> Span:
        return _NoSpan(self, category, name, nbytes, args)

    def add(self, category: str, name: str, start_ns: int, end_ns: int, *, lane: str = "", nbytes: int = 0,
            **args: Any) -> None:
        pass

    def mark(self, name: str) -> None:
        pass


OFF: Timeline = _Off()
"""The timeline of whoever wants none."""
