"""Golden dumps on disk: what is written is read, and nothing that is broken is."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import StoreError
from dayzero.runtime.golden import Writer, open_dump
from dayzero.runtime.golden.dump import positions
from dayzero.runtime.golden.files import manifest_name, part_name
from dayzero.schema import Column, Layout
from dayzero.schema.golden import Entry, Held, Origin, Pass, RankDump, Rows, Sample, Statistics

STATISTICS = Statistics(count=0, nan=0, inf=0, minimum=0.0, maximum=0.0, mean=0.0, rms=0.0, max_abs=0.0)
NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8", "U8": "u1",
         "BOOL": "?"}


def head(rank: int = 0, layout: Layout | None = None, mode: str = "whole") -> RankDump:
    origin = Origin(release="r", digests={}, engine="test", libraries={}, dtype="F32", device="cpu")
    return RankDump(finished=False, origin=origin, layout=layout or Layout(), rank=rank, place={"tp": rank}, seed=0,
                    mode=mode)


def run(number: int, rows: int) -> Pass:
    return Pass(number=number, phase="prefill", shape=(1, rows), tokens=Column(range(rows)),
                rows=(Rows(sequence=number, first=0, count=rows),))


def entry(values: Any, dtype: str = "F32", **changes: Any) -> Entry:
    facts = {"name": "a.b", "module": "Linear", "kind": "linear", "what": "output", "slot": "0", "pass_no": 0,
             "call": 0, "order": 0, "axes": ("token", "channel")[:values.ndim], "shape": values.shape, "dtype": dtype,
             "statistics": msgspec.structs.replace(STATISTICS, count=values.size)}
    return Entry(**(facts | changes))


def write(folder: Path, count: int = 3, **options: Any) -> list[np.ndarray]:
    """A dump of `count` tensors in a pass."""
    writer, made = Writer(folder, head(), **options), []
    writer.begin(run(0, 4))
    for number in range(count):
        made.append(np.arange(8, dtype="<f4").reshape(4, 2) + number)
        writer.add(entry(made[-1], order=number), made[-1])
    writer.finish()
    return made


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("dump") / "d"
    tensors = []
    for _ in range(data.draw(st.integers(1, 8))):
        dtype = data.draw(st.sampled_from(sorted(NUMPY)))
        shape = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 4)))
        size = int(np.prod(shape)) * np.dtype(NUMPY[dtype]).itemsize
        raw = data.draw(st.binary(min_size=size, max_size=size))
        raw = bytes(each & 1 for each in raw) if dtype == "BOOL" else raw
        tensors.append((dtype, np.frombuffer(raw, NUMPY[dtype]).reshape(shape)))
    writer = Writer(folder, head(), part_bytes=data.draw(st.sampled_from([1, 64, 10_000])))
    writer.begin(run(0, 4))
    for order, (dtype, values) in enumerate(tensors):
        writer.add(entry(values, dtype, order=order, axes=("dim0", "dim1")), values)
    writer.finish()
    with open_dump(folder) as dump:
        assert len(dump.items) == len(tensors)
        for item, (dtype, values) in zip(dump.items, tensors, strict=True):
            dump.verify(item)
            read = dump.read(item)
            blocks = [block for _, block in dump.blocks(item, limit=7)]
            assert read.shape == values.shape
            np.testing.assert_array_equal(np.concatenate(blocks) if blocks else read, read)
            if dtype in ("F32", "F16", "F64"):
                np.testing.assert_array_equal(read, values.astype("f8" if dtype == "F64" else "f4"))
            elif dtype == "BF16":
                np.testing.assert_array_equal(read.view("<u4") >> 16, values)
            elif dtype in ("I64", "U8", "BOOL"):
                np.testing.assert_array_equal(read, values)


def test_part_files_are_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    made = write(tmp_path / "d")
    found = load_file(tmp_path / "d" / part_name(0, 0))
    np.testing.assert_array_equal(found["0/1/a.b/output/0"], made[1])


def test_equal_values_are_written_once_and_found_in_an_earlier_part(tmp_path: Path) -> None:
    writer, values = Writer(tmp_path / "d", head(), part_bytes=1), np.ones((4, 2), "<f4")
    writer.begin(run(0, 4))
    first = writer.add(entry(values), values)
    writer.add(msgspec.structs.replace(first, order=1, what="input"))
    writer.add(entry(values, order=2), 2 * values)
    writer.finish()
    with open_dump(tmp_path / "d") as dump:
        assert [float(dump.read(item)[0, 0]) for item in dump.items] == [1, 1, 2]
        assert dump.items[0].place == dump.items[1].place
        dump.verify(dump.items[1])


def test_rows_are_positions_and_samples_choose_among_them(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "d", head(mode="sampled"))
    rows = (Rows(sequence=3, first=5, count=2), Rows(sequence=-1, first=0, count=1), Rows(sequence=4, first=0, count=1))
    writer.begin(Pass(number=0, phase="prefill", shape=(2, 2), rows=rows, tokens=Column([7, 8, 0, 9])))
    kept = Sample(rows=Column([1, 3]), columns=Column([0]))
    writer.add(entry(np.zeros((4, 3), "<f4"), sample=kept), np.array([[1], [2]], "<f4"))
    writer.add(entry(np.zeros(2, "<f4"), rows=(Rows(sequence=4, first=9, count=2),), order=1), np.zeros(2, "<f4"))
    writer.finish()
    with open_dump(tmp_path / "d") as dump:
        assert dump.rows(dump.items[0]).tolist() == [[3, 6], [4, 0]]
        assert dump.read(dump.items[0]).tolist() == [[1], [2]]
        assert dump.rows(dump.items[1]).tolist() == [[4, 9], [4, 10]]
        assert dump.sequences[3].tolist() == [-1] * 5 + [7, 8]
        assert dump.sequences[4].tolist() == [9]


def test_rows_of_a_part_of_the_tokens_are_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "d", head())
    writer.begin(run(0, 6))
    part = Held(axis=0, size=6, ranges=((1, 2), (4, 6)))
    writer.add(entry(np.ones((3, 2), "<f4"), held=(part,)), np.ones((3, 2), "<f4"))
    writer.finish()
    with open_dump(tmp_path / "d") as dump:
        assert dump.rows(dump.items[0]).tolist() == [[0, 1], [0, 4], [0, 5]]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 9), st.integers(0, 4)), max_size=6))
def test_positions_count_on(told: list[tuple[int, int, int]]) -> None:
    rows = tuple(Rows(sequence=sequence, first=first, count=count) for sequence, first, count in told)
    wanted = [[each.sequence, each.first + step] for each in rows for step in range(each.count)]
    assert positions(rows).tolist() == wanted


def test_one_that_is_not_finished_says_so_and_can_be_read(tmp_path: Path) -> None:
    writer, values = Writer(tmp_path / "d", head(), part_bytes=1), np.ones((4, 2), "<f4")
    writer.begin(run(0, 4))
    writer.add(entry(values), values)
    with pytest.raises(StoreError, match="not finished: rank 0"):
        open_dump(tmp_path / "d")
    with open_dump(tmp_path / "d", unfinished=True) as dump:
        assert not dump.finished
        assert dump.read(dump.items[0]).sum() == 8
    writer.abandon("it was enough")
    with pytest.raises(StoreError, match="it was enough"):
        open_dump(tmp_path / "d")


def test_all_ranks_have_to_be_there(tmp_path: Path) -> None:
    layout = Layout(tp=2)
    for rank in (0, 1):
        writer = Writer(tmp_path / "d", head(rank, layout))
        writer.begin(run(0, 4))
        values = np.full((4, 1), rank, "<f4")
        writer.add(entry(values, held=(Held(axis=1, size=2, ranges=((rank, rank + 1),)),)), values)
        writer.finish()
    with open_dump(tmp_path / "d") as dump:
        assert [item.dump.rank for item in dump.items] == [0, 1]
    (tmp_path / "d" / manifest_name(1)).unlink()
    with pytest.raises(StoreError, match="1 of 2 ranks"):
        open_dump(tmp_path / "d")


def test_a_second_dump_does_not_go_into_the_first(tmp_path: Path) -> None:
    write(tmp_path / "d")
    with pytest.raises(StoreError, match="has a golden dump of rank 0"):
        Writer(tmp_path / "d", head())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _header(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


@pytest.mark.parametrize(("harm", "said"), [
    (_cut, "it ends after"), (_header, "no header"), (Path.unlink, "not there")])
def test_broken_part_files_are_refused(tmp_path: Path, harm: Any, said: str) -> None:
    write(tmp_path / "d")
    harm(tmp_path / "d" / part_name(0, 0))
    with pytest.raises(StoreError, match=said):
        open_dump(tmp_path / "d")


def test_changed_values_are_seen(tmp_path: Path) -> None:
    write(tmp_path / "d")
    _flip(tmp_path / "d" / part_name(0, 0))
    with open_dump(tmp_path / "d") as dump, pytest.raises(StoreError, match="its digest differs"):
        for item in dump.items:
            dump.verify(item)


@pytest.mark.parametrize(("old", "new"), [
    (b"rank-00000-00000", b"../../../../etc/"), (b'"rank":0', b'"rank":1'), (b'"format":2', b'"format":9'),
    (b'"finished":true', b'"finished":4444'), (b"{", b"["), (b'"seed":0', b'"seed":1e999'),
    (b'"rank-00000-00000.safetensors"', b""), (b'"tp":0', b'"tp":1'), (b'"mode":"whole"', b'"mode":"statistics"')])
def test_broken_manifests_are_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    write(tmp_path / "d")
    path = tmp_path / "d" / manifest_name(0)
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(StoreError):
        open_dump(tmp_path / "d")


@pytest.mark.parametrize("changes", [
    {"shape": (4, 3)}, {"axes": ("token",)}, {"dtype": "X9"}, {"pass_no": 5}, {"shape": (-4, -2)},
    {"held": (Held(axis=1, size=9, ranges=((0, 5),)),)}, {"held": (Held(axis=7, size=9, ranges=((0, 2),)),)},
    {"sample": Sample(rows=Column([3, 1, 2, 0]), columns=None)}, {"sample": Sample(rows=Column([0, 9]), columns=None)},
    {"sample": Sample(rows=Column([0, 1, 2, 3]), columns=None)}, {"rows": (Rows(sequence=0, first=0, count=5),)},
    {"statistics": STATISTICS}])
def test_entries_that_contradict_their_values_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    from dayzero.runtime.golden.writer import _Kept

    writer, values = Writer(tmp_path / "d", head()), np.ones((4, 2), "<f4")
    writer.begin(run(0, 4))
    made = writer.add(entry(values), values)
    writer._entries[0] = msgspec.structs.replace(made, **changes)
    writer._kept[0] = _Kept(made, memoryview(values).cast("B"))
    writer.finish()
    with pytest.raises(StoreError):
        open_dump(tmp_path / "d")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "d")
    part = tmp_path / "d" / part_name(0, 0)
    shutil.move(part, tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="it is a link"):
        open_dump(tmp_path / "d")


def test_folders_without_a_dump_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreError):
            open_dump(folder)


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that takes no more: the system refuses the write."""
    writer, small, large = Writer(tmp_path / "d", head(), part_bytes=1), np.ones((4, 2), "<f4"), np.ones(100_000, "<f4")
    writer.begin(run(0, 4))
    writer.add(entry(small), small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        with pytest.raises(StoreError, match="cannot write"):
            writer.add(entry(large, order=1, axes=("dim0",)), large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with open_dump(tmp_path / "d", unfinished=True) as dump:
        assert [item.entry.order for item in dump.items] == [0]
        dump.verify(dump.items[0])


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.unit.runtime.golden.test_dump import entry, head, run
import numpy as np
from dayzero.runtime.golden import Writer
writer = Writer(Path(sys.argv[1]), head(), part_bytes=64)
for number in range(100):
    writer.begin(run(number, 4))
    values = np.full((4, 4), number, "<f4")
    writer.add(entry(values, pass_no=number, order=number), values)
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing_that_was_written(tmp_path: Path, root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "d"), str(root)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_dump(tmp_path / "d", unfinished=True) as dump:
        assert len(dump.items) == 21
        assert [float(dump.read(item)[0, 0]) for item in dump.items] == list(range(21))


def test_reading_takes_no_more_memory_than_a_block(tmp_path: Path) -> None:
    import tracemalloc

    writer, values = Writer(tmp_path / "d", head()), np.ones((1 << 14, 256), "<f4")  # 16 MiB
    writer.begin(run(0, 1 << 14))
    writer.add(entry(values), values)
    writer.finish()
    del values
    with open_dump(tmp_path / "d") as dump:
        tracemalloc.start()
        total = sum(float(block.sum()) for _, block in dump.blocks(dump.items[0], limit=1 << 18))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == (1 << 14) * 256
    assert peak < 2 << 20
