"""Traces: what is recorded, what torch's snapshots say, and what is no trace."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.runtime.replay import Trace, read_trace, record, trace_of, write_trace


def events(trace: Trace) -> list[int]:
    return trace.events.values.tolist()


def test_frees_name_what_was_allocated_and_early_memory_comes_first() -> None:
    trace = trace_of("x", [(10, 100, 0), (20, 50, 0), (10, -100, 0), (99, -7, 0), (10, 30, 0), (20, -50, 0)])
    assert events(trace) == [7, 100, 50, -2, -1, 30, -3]
    assert trace.peak == 157
    assert len(trace.streams) == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100), st.booleans()), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_peak_is_that_of_the_program(changes: list[tuple[int, int, bool]]) -> None:
    live: dict[int, int] = {}
    seen, most = [], 0
    for address, nbytes, take in changes:
        if take and address not in live:
            live[address] = nbytes
            seen.append((address, nbytes, address % 2))
        elif not take and address in live:
            seen.append((address, -live.pop(address), address % 2))
        most = max(most, sum(live.values()))
    trace = trace_of("x", seen)
    assert trace.peak == most
    assert trace.sizes.tolist() == [nbytes for _, nbytes, _ in seen if nbytes > 0]


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = trace_of("x", [(1, 100, 7), (2, 50, 9), (1, -100, 7)])
    write_trace(trace, tmp_path / "t.json")
    assert read_trace(tmp_path / "t.json") == trace
    assert [trace.stream(0), trace.stream(1)] == [0, 1]


def test_what_torch_allocates_is_recorded_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(3000, dtype=torch.uint8)
        del first
        third = torch.empty(700, dtype=torch.uint8)
        del second, third

    assert events(record("work", work)) == [1000, 3000, -1, 700, -2, -3]
    capfd.readouterr()  # the profiler says on standard error that it runs


def _snapshot() -> dict[str, Any]:
    """The form of torch.cuda.memory._snapshot() (torch 2.13): segments with blocks, and events of each device."""
    def event(action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1, "frames": []}

    block = {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []}
    late = {"address": 8192, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": []}
    return {"segments": [{"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "blocks": [
                block, late, {"address": 9000, "size": 9, "requested_size": 0, "state": "inactive", "frames": []}]},
                         {"device": 1, "address": 4096, "total_size": 2097152, "stream": 0, "blocks": [block]}],
            "device_traces": [[event("segment_alloc", 4096, 2097152), event("alloc", 5120, 600, 3),
                               event("free_requested", 5120, 600, 3), event("free_completed", 5120, 600, 3),
                               event("free_completed", 7777, 40), event("alloc", 8192, 300)], []]}


def test_a_snapshot_of_torch_is_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(_snapshot()))
    trace = read_trace(path)
    # 40 bytes from before recording, freed; 1000 that lived from the start to the end; then what was seen.
    assert events(trace) == [40, 1000, 600, -3, -1, 300]
    assert (trace.name, trace.peak) == ("snapshot", 1640)
    assert trace.streams.values.tolist() == [0, 0, 1, 0]
    assert events(read_trace(path, device=1)) == [1000]
    with pytest.raises(UsageError, match="no device 2"):
        read_trace(path, device=2)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "t.pickle").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UsageError, match="no allocation trace"):
        read_trace(tmp_path / "t.pickle")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"kind": "allocations"}', '{"kind": "allocations", "name": "x", "events": "?", "streams": ""}',
    '{"device_traces": 3}', '{"device_traces": [[{"action": "alloc"}]]}', '{"device_traces": [[]]}',
    '{"device_traces": [[{"action": "alloc", "addr": 1, "size": "x"}]]}', '{"device_traces": [7]}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(UsageError):
        read_trace(tmp_path / "t.json")


@pytest.mark.parametrize("changed", [[-1, 5], [5, -1, -1], [5, -2], [5, 0]])
def test_frees_of_nothing_are_refused(tmp_path: Path, changed: list[int]) -> None:
    from dayzero.schema.base import Column

    write_trace(Trace(name="x", events=Column(changed), streams=Column([])), tmp_path / "t.json")
    with pytest.raises(UsageError):
        read_trace(tmp_path / "t.json")
