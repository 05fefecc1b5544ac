"""Allocation traces: record one, and replay it against our allocators and torch's.

    trace = record("decode", lambda: model.generate(...))       or read_trace(path)
    found = replay(trace)                                       the one that needs the least memory comes first
"""

from __future__ import annotations

from .caching import CachingModel
from .recording import record
from .replaying import Replay, Replayed, replay
from .trace import Trace, read_trace, trace_of, write_trace

__all__ = ["CachingModel", "Replay", "Replayed", "Trace", "read_trace", "record", "replay", "trace_of", "write_trace"]
