"""What is recorded is in the file, whole at any moment; ranks merge on one clock."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dayzero.errors import StoreError, UsageError
from dayzero.runtime.timeline import OFF, Timeline, merge, overlap
from dayzero.runtime.timeline.clocks import shift
from dayzero.runtime.timeline.trace_file import TraceFile, events_of


def spans_of(path: Path) -> list[dict]:
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def test_spans_have_their_thread_time_bytes_and_words(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path, rank=3) as timeline:
        before = time.perf_counter_ns()
        with timeline.span("load", "layer 5", nbytes=4, layer=5) as span:
            span.nbytes = 99
        after = time.perf_counter_ns()
        other = threading.Thread(target=lambda: timeline.span("compute").__enter__().__exit__(), name="other")
        other.start()
        other.join()
    names = {event["tid"]: event["args"]["name"] for event in json.loads(path.read_text())
             if event["name"] == "thread_name"}
    load, compute = spans_of(path)
    assert (load["name"], load["cat"], load["pid"], load["args"]) == ("layer 5", "load", 3, {"bytes": 99, "layer": 5})
    assert before <= round(load["ts"] * 1000) <= round((load["ts"] + load["dur"]) * 1000) <= after
    assert (names[load["tid"]], names[compute["tid"]], compute["name"]) == ("MainThread", "other", "compute")
    assert not any(thread.name == "timeline" for thread in threading.enumerate())


def test_a_category_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="laod"):
        Timeline().span("laod")


def test_the_file_of_a_killed_process_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    code = f"""
import os, pathlib, signal, time
from dayzero.runtime.timeline import Timeline
timeline = Timeline(pathlib.Path({str(path)!r}))
for index in range(500):
    with timeline.span("compute", str(index)):
        pass
timeline.flush()
with timeline.span("load", "after"):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert [span["name"] for span in spans_of(path)][:500] == [str(index) for index in range(500)]


def test_the_file_is_whole_after_each_writing(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json", [{"name": "clock", "ph": "M", "pid": 0}])
    for count in range(1, 4):
        file.append([{"name": "a", "ph": "X", "pid": 0}])
        assert len(json.loads((tmp_path / "t.json").read_text())) == count + 1
    file.close()


def test_a_line_that_is_cut_short_is_left_out_and_others_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    whole = '[\n{"name": "a", "ph": "X", "pid": 0},\n'
    path.write_text(whole + '{"name": "b", "p')
    assert [event["name"] for event in events_of(path)] == ["a"]
    for text in ("{}", whole + "3,\n]\n", whole + '{"na,\n{"name": "a", "ph": "X", "pid": 0}\n]\n'):
        path.write_text(text)
        with pytest.raises(StoreError):
            list(events_of(path))


def test_the_same_shares_from_memory_and_from_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        with Timeline(path, rank=rank) as timeline:
            timeline.add("compute", "step", 1_000, 2_000 + rank * 1_000, lane="main")
            timeline.add("collective", "all-reduce", 1_500, 3_500, lane="stream", nbytes=64)
            (found,) = timeline.overlap()
            assert (found.seconds, found.hidden_s) == (2e-6, [0.5e-6, 1.5e-6][rank])
    (both,) = overlap(paths)
    assert (both.category, both.seconds, both.hidden_s, both.nbytes) == ("collective", 4e-6, 2e-6, 128)


def test_merged_ranks_are_on_the_first_ones_clock(tmp_path: Path) -> None:
    """Two hosts whose monotonic clocks started at different times: marks of the same barriers tell the difference."""
    paths = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        far = rank * 5_000_000  # ns
        file = TraceFile(path, [{"name": "clock", "ph": "M", "pid": rank,
                                 "args": {"perf_ns": 0, "wall_ns": rank * 77, "host": f"host {rank}"}},
                                {"name": "thread_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": "main"}}])
        file.append({"name": "barrier", "ph": "i", "pid": rank, "tid": 0, "cat": "mark", "ts": (moment + far) / 1000}
                    for moment in (100_000, 900_000))
        file.append([{"name": "step", "cat": "compute", "ph": "X", "pid": rank, "tid": 0, "ts": (200_000 + far) / 1000,
                      "dur": 1.0}])
        file.close()
    out = tmp_path / "merged.json"
    assert merge(paths, out) == {paths[0]: "one clock", paths[1]: "marks"}
    assert [(span["pid"], span["ts"]) for span in spans_of(out)] == [(0, 200.0), (1, 200.0)]
    with pytest.raises(UsageError):
        merge(paths, paths[0])
    with pytest.raises(UsageError):
        merge([], out)
    with pytest.raises(StoreError, match="clock"):
        merge([out], tmp_path / "again.json")


def test_clocks_are_aligned_by_the_best_that_is_known() -> None:
    here = {"perf_ns": 1_000, "wall_ns": 5_000, "host": "a"}
    assert shift({"perf_ns": 9_000, "wall_ns": 13_000, "host": "a"}, {}, here, {}) == (0, "one clock")
    there = {"perf_ns": 0, "wall_ns": 6_000, "host": "b"}
    assert shift(there, {}, here, {}) == (2_000, "wall clock")  # its 0 is wall time 6000, which here is 2000
    marks = {("barrier", 0): 10, ("barrier", 1): 20, ("barrier", 2): 90}
    assert shift(there, marks, here, {("barrier", 0): 110, ("barrier", 1): 121}) == (100, "marks")
    restarted = {"perf_ns": 0, "wall_ns": 60_000_000_000, "host": "a"}  # one host, but not one clock
    assert shift(restarted, {}, here, {})[1] == "wall clock"


def test_marks_are_in_the_file(tmp_path: Path) -> None:
    with Timeline(tmp_path / "t.json") as timeline:
        timeline.mark("barrier")
    (mark,) = [event for event in events_of(tmp_path / "t.json") if event["ph"] == "i"]
    assert mark["name"] == "barrier"
    assert timeline.overlap() == ()


def test_no_span_is_lost_while_threads_record_and_the_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with Timeline(path) as timeline:
        def record() -> None:
            for _ in range(2000):
                with timeline.span("compute"):
                    pass

        threads = [threading.Thread(target=record) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            timeline.flush()
            time.sleep(0.001)
    assert len(spans_of(path)) == 6000


def test_off_records_nothing() -> None:
    with OFF.span("load", nbytes=3) as span:
        span.nbytes = 4
    OFF.add("load", "x", 0, 1)
    OFF.mark("x")
    assert OFF.overlap() == ()
    assert not OFF.records
