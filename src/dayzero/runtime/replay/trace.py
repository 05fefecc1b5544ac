"""An allocation trace: what was allocated and freed, in order; read from our own files and from torch's snapshots.

A snapshot of torch's memory is pickled by default, and unpickling runs code, so that it is never done here; it is only
numbers and text and can be written as JSON (docs/pool.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dayzero.errors import UsageError
from dayzero.schema.base import Column, Noun, from_json, to_json
from dayzero.schema.store import write_atomic

_KIND = "allocations"
_HINT = "give a trace that dayzero recorded, or torch's memory snapshot as JSON (docs/pool.md)"


class Trace(Noun, frozen=True, kw_only=True):
    """Allocations and frees in the order in which they happened."""

    name: str
    """What ran."""
    events: Column
    """n > 0: n bytes are allocated; -k: what the k-th allocation (from 1) allocated is freed."""
    streams: Column
    """The stream of each allocation, as a small number; empty: one stream."""
    kind: str = _KIND
    """Tells such a file from others."""

    @property
    def sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of each allocation."""
        return self.events.values[self.events.values > 0]

    @property
    def peak(self) -> int:
        """Most bytes that were in use at a time."""
        events, sizes = self.events.values, self.sizes
        steps = np.where(events > 0, events, -sizes[np.where(events < 0, -events - 1, 0)] if len(sizes) else events)
        return int(np.cumsum(steps).max(initial=0))

    def stream(self, index: int) -> int:
        """The stream of an allocation, from 0."""
        return int(self.streams.values[index]) if len(self.streams) else 0


def trace_of(name: str, changes: Iterable[tuple[int, int, int]]) -> Trace:
    """A trace from (address, bytes, stream): bytes > 0 allocated there, < 0 freed. What is freed and was never seen
    to be allocated was there from the start."""
    early: list[tuple[int, int]] = []
    order: list[tuple[int, int]] = []  # (bytes or 0 for a free, index into all that was allocated, early ones negative)
    streams: list[int] = []
    numbers: dict[int, int] = {}
    live: dict[int, int] = {}
    for address, nbytes, stream in changes:
        number = numbers.setdefault(stream, len(numbers))
        if nbytes > 0:
            live[address] = len(streams)
            order.append((nbytes, len(streams)))
            streams.append(number)
        elif nbytes < 0:
            index = live.pop(address, None)
            if index is None:
                early.append((-nbytes, number))
                index = -len(early)
            order.append((0, index))
    before = len(early)
    events = [nbytes for nbytes, _ in early]
    events += [nbytes or -(index + 1 + before if index >= 0 else -index) for nbytes, index in order]
    every = [number for _, number in early] + streams
    return Trace(name=name, events=Column(events), streams=Column(every if len(numbers) > 1 else []))


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, whole or not at all."""
    write_atomic(path, to_json(trace) + b"\n")


def read_trace(path: Path, *, device: int = 0) -> Trace:
    """A trace from a file: ours, or a snapshot of torch's memory as JSON, of which one device is taken.

    Raises UsageError for any other file, and for a trace that frees what is not allocated.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
        if isinstance(found, dict) and found.get("kind") == _KIND:
            trace = from_json(path.read_bytes(), Trace)
        elif isinstance(found, dict) and "device_traces" in found:
            trace = trace_of(path.stem, _snapshot(found, device))
        else:
            raise UsageError(f"{path} is no allocation trace", _HINT)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no allocation trace: {error}", _HINT) from None
    _check(trace, path)
    return trace


def _snapshot(found: Mapping[str, Any], device: int) -> Iterator[tuple[int, int, int]]:
    """The changes of a snapshot. What lived at its end and was not seen to be allocated was there from the start."""
    if device >= len(found["device_traces"]):
        raise UsageError(f"the snapshot has no device {device}", f"it has {len(found['device_traces'])}")
    events = [event for event in found["device_traces"][device] if event["action"] in ("alloc", "free_completed")]
    last = {event["addr"]: event["action"] for event in events}
    for segment in found.get("segments", ()):
        if segment.get("device", 0) != device:
            continue
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and last.get(block["address"]) != "alloc":
                yield block["address"], block.get("requested_size", block["size"]), segment.get("stream", 0)
    for event in events:
        sign = 1 if event["action"] == "alloc" else -1
        yield event["addr"], sign * event["size"], event.get("stream", 0)


def _check(trace: Trace, path: Path) -> None:
    live: set[int] = set()
    count = 0
    for event in trace.events.values.tolist():
        if event > 0:
            count += 1
            live.add(count)
        elif -event in live:
            live.remove(-event)
        else:
            raise UsageError(f"{path}: something is freed that is not allocated", _HINT)
    if not count:
        raise UsageError(f"{path}: nothing is allocated", "record while memory is used")
    if len(trace.streams) not in (0, count):
        raise UsageError(f"{path}: {count} allocations have {len(trace.streams)} streams", _HINT)
