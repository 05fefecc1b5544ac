"""The file of a timeline: Chrome's trace format (an array of events), which Perfetto and chrome://tracing open.

An event is one line. Each writing puts lines over the closing bracket and a new bracket behind them in one call, so
that the file is a whole JSON document whenever a process is killed between two writings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dayzero.errors import StoreError

_END = b"\n]\n"
_encode = msgspec.json.Encoder(enc_hook=str).encode


class TraceFile:
    """Begins a trace with events that say what it is; a file that was there is replaced."""

    def __init__(self, path: Path, events: Iterable[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._size = 0
        self._put(b"[\n", events)

    def append(self, events: Iterable[dict[str, Any]]) -> None:
        """Write further events."""
        self._put(b",\n", events)

    def _put(self, begin: bytes, events: Iterable[dict[str, Any]]) -> None:
        lines = b",\n".join(_encode(event) for event in events)
        if lines:
            data = begin + lines
            os.pwrite(self._file, data + _END, self._size)
            self._size += len(data)

    def close(self) -> None:
        """Close the file; it is complete."""
        os.close(self._file)


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file that `TraceFile` made, in order. A line that a killed process left half is the last one.

    Raises StoreError for a file that is no such trace.
    """
    hint = "give the file that a timeline wrote"
    with path.open("rb") as file:
        if file.readline() != b"[\n":
            raise StoreError(f"{path} is not the trace of a timeline", hint)
        for line in file:
            text = line.rstrip(b",\n")
            if text == b"]":
                return
            try:
                event = msgspec.json.decode(text)
            except msgspec.DecodeError:
                if file.read(1):
                    raise StoreError(f"{path}: a line is not an event", hint) from None
                return
            if not isinstance(event, dict) or not {"name", "ph", "pid"} <= event.keys():
                raise StoreError(f"{path}: a line is not an event", hint)
            yield event
