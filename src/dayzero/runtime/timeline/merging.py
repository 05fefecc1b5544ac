"""The files of several ranks: one trace on one clock, and what was hidden on all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dayzero.errors import StoreError, UsageError
from dayzero.schema.record import Overlap

from .clocks import shift
from .shares import shares, together
from .trace_file import TraceFile, events_of

_BATCH = 4096


@dataclass
class _Read:
    """What one pass over a file keeps of it."""

    clock: dict[str, Any] = field(default_factory=dict)
    lanes: dict[int, str] = field(default_factory=dict)
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    nbytes: Counter[str] = field(default_factory=Counter)


def overlap(paths: Sequence[Path]) -> tuple[Overlap, ...]:
    """What was hidden under the computing of the same rank, summed over the ranks that wrote the files.

    Raises StoreError for a file that is not a timeline's.
    """
    return together([shares({key: np.array(spans, np.int64) for key, spans in found.spans.items()}, found.nbytes)
                     for found in map(_read, paths)])  # fmt: skip


def merge(paths: Sequence[Path], out: Path) -> dict[Path, str]:
    """Write one trace of several ranks' files, on the clock of the first. For each file how its clock was aligned.

    Raises UsageError where there is no file, or `out` is one of them; StoreError for a file that is not a timeline's.
    """
    if not paths or out.resolve() in {path.resolve() for path in paths}:
        raise UsageError("there is nothing to merge, or it would be written over",
                         "give files, and another for the result")
    read = [_read(path) for path in paths]
    shifts = [shift(one.clock, one.marks, read[0].clock, read[0].marks) for one in read]
    aligned = {path.name: how for path, (_, how) in zip(paths, shifts, strict=True)}
    merged = TraceFile(out, [{"name": "aligned", "ph": "M", "pid": 0, "args": aligned}])
    try:
        for path, (difference, _) in zip(paths, shifts, strict=True):
            events = events_of(path)
            while batch := list(islice(events, _BATCH)):
                merged.append([{**event, "ts": event["ts"] + difference / 1000} if "ts" in event else event
                               for event in batch if event["name"] != "clock"])  # fmt: skip
    finally:
        merged.close()
    return {path: how for path, (_, how) in zip(paths, shifts, strict=True)}


def _read(path: Path) -> _Read:
    found, seen = _Read(), Counter[str]()
    for event in events_of(path):
        args = event.get("args", {})
        if event["ph"] == "M" and event["name"] == "clock":
            found.clock = args
        elif event["ph"] == "M" and event["name"] == "thread_name":
            found.lanes[event["tid"]] = args["name"]
        elif event["ph"] == "i":
            found.marks[event["name"], seen[event["name"]]] = round(event["ts"] * 1000)
            seen[event["name"]] += 1
        elif event["ph"] == "X":
            start = round(event["ts"] * 1000)
            found.spans[event["cat"], found.lanes[event["tid"]]].append((start, start + round(event["dur"] * 1000)))
            found.nbytes[event["cat"]] += args.get("bytes", 0)
    if not found.clock:
        raise StoreError(f"{path} does not say its clock", "give the file of one rank, as a timeline wrote it")
    return found
