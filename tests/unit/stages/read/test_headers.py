"""Headers: what is right is read, what is wrong is one error of two lines, whatever the bytes are."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import small_release

from dayzero.errors import DayzeroError, ReleaseError
from dayzero.stages.read.headers import LIMIT, decode, header_length, read_header, rows
from dayzero.stages.read.names import table

GOOD = {"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [12, 16]}}  # fmt: skip


def load(path: Path) -> tuple[Any, Any]:
    header = read_header(path, path.name)
    return header, rows(header)


def write(path: Path, entries: Any, data: int = 16) -> Path:
    path.write_bytes(small_release.header(entries) + b"\1" * data)
    return path


def test_reads_names_shapes_and_places(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"__metadata__": {"format": "pt"}, "b": GOOD["b"], "a": GOOD["a"]})
    header, found = load(path)
    assert header.data_end == path.stat().st_size
    assert [found.kinds[kind] for kind in found.kind] == [("a", "BF16", (2, 3)), ("b", "U8", (4,))]
    assert (found.start - header.data_start).tolist() == [0, 12]


def test_metadata_may_hold_any_text(tmp_path: Path) -> None:
    odd = {"dtype": "x", "shape": "long", "data_offsets": "none"}
    _, found = load(write(tmp_path / "m.safetensors", {"__metadata__": odd, **GOOD}))
    assert len(found.kind) == 2


def test_an_empty_file_of_tensors(tmp_path: Path) -> None:
    _, found = load(write(tmp_path / "m.safetensors", {}, data=0))
    assert len(found.kind) == 0


def test_scalars_empty_tensors_and_half_bytes(tmp_path: Path) -> None:
    entries = {"scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
               "none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]},
               "fp4": {"dtype": "F4", "shape": [6], "data_offsets": [4, 7]}}  # fmt: skip
    _, found = load(write(tmp_path / "m.safetensors", entries, data=7))
    assert len(found.kind) == 3


def test_a_dtype_of_tomorrow_has_the_bits_that_its_data_gives_each_element(tmp_path: Path) -> None:
    entries = {"a": {"dtype": "F5_E2M2", "shape": [4, 8], "data_offsets": [0, 20]},
               "b": {"dtype": "F5_E2M2", "shape": [3], "data_offsets": [20, 22]}}  # fmt: skip
    _, found = load(write(tmp_path / "m.safetensors", entries, 22))
    assert found.new_dtypes == {"F5_E2M2": 5}
    groups = {group.pattern: group for group in table(("m.safetensors",), [found]).groups}
    assert (groups["a"].tensor_bytes, groups["b"].tensor_bytes) == (20, 2)
    other = dataclasses.replace(found, new_dtypes={"F5_E2M2": 6})
    with pytest.raises(ReleaseError, match="6 bits in b and 5 in another"):
        table(("a", "b"), [found, other])


def test_a_file_cut_short_is_read_and_says_what_it_should_be(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", GOOD)
    full = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    header, found = load(path)
    assert (header.size, header.data_end, len(found.kind)) == (full - 5, full, 2)


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "b": {**GOOD["b"], **changes}}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([1], "not a JSON object"),
        ({"a": 1}, "'a'"),
        ({"a": {"dtype": "BF16", "shape": [1]}}, "lacks"),
        (changed(dtype="BF61", shape=[3]), 'unknown dtype .BF61..*did you mean "BF16"'),
        (changed(dtype="BF61", shape=[0], data_offsets=[12, 12]), "do not tell"),
        ({"a": GOOD["a"], "b": {"dtype": "F5", "shape": [2], "data_offsets": [12, 16]},
          "c": {"dtype": "F5", "shape": [3], "data_offsets": [16, 24]}}, "unknown dtype .F5."),
        ({"a": {"dtype": "F5", "shape": [8], "data_offsets": [0, 5]},
          "b": {"dtype": "F5", "shape": [4], "data_offsets": [5, 16]}}, "do not hold"),
        (changed(dtype=3), "'b'"),
        (changed(shape=[-4]), "'b'"),
        (changed(shape=[2**70]), "'b'"),
        (changed(shape=[2**40, 2**40]), "impossible shape"),
        (changed(shape=[5]), "do not hold"),
        (changed(shape=[4.5]), "'b'"),
        (changed(data_offsets=[16, 12]), "do not hold"),
        (changed(data_offsets=[12]), "'b'"),
        (changed(data_offsets=[12, 16, 20]), "'b'"),
        (changed(data_offsets=[-4, 0]), "'b'"),
        (changed(data_offsets=[10, 14]), "overlaps"),
        (changed(data_offsets=[14, 18]), "gap"),
        ({"b": GOOD["b"]}, "gap"),
        ({"layers.{L}.w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}, "braces"),
        ({"a": GOOD["a"]}, "goes on for 4 bytes"),
    ],
)
def test_wrong_headers(tmp_path: Path, entries: Any, says: str) -> None:
    with pytest.raises(ReleaseError, match=says) as error:
        load(write(tmp_path / "m.safetensors", entries))
    assert error.value.message.startswith("m.safetensors") and "\n" not in error.value.message + error.value.hint
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "only 0 bytes"),
        (b"\1\0\0", "only 3 bytes"),
        (struct.pack("<Q", 50) + b"{}", "but the file ends after 10 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "the format allows"),
        (struct.pack("<Q", 2) + b"{]", "does not describe"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "not a JSON object"),
        (struct.pack("<Q", 8) + b'{"\xff":{}}', "does not describe"),
        (struct.pack("<Q", 100_005) + b'{"a":' + b"[" * 100_000, "does not describe"),
    ],
)
def test_wrong_files(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ReleaseError, match=says):
        load(path)


def test_a_header_over_the_limit_is_not_even_read() -> None:
    with pytest.raises(ReleaseError, match="the format allows"):
        header_length(struct.pack("<Q", LIMIT + 1), 10**12, "m.safetensors")


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="cannot read m"):
        read_header(tmp_path / "absent", "m")
    with pytest.raises(ReleaseError, match="cannot read m"):
        read_header(tmp_path, "m")


@given(st.binary(max_size=200))
def test_random_bytes_are_a_header_or_an_error(data: bytes) -> None:
    try:
        decode(data, "m")
    except DayzeroError as error:
        assert "\n" not in error.message


JSON = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                    max_leaves=6)  # fmt: skip
ENTRY = st.fixed_dictionaries({}, optional={
    "dtype": st.sampled_from(["BF16", "U8", "F4", "Q9"]) | JSON,
    "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
    "data_offsets": st.lists(st.integers(-1, 30), min_size=1, max_size=3) | JSON})  # fmt: skip


@given(st.dictionaries(st.text(max_size=8) | st.just("__metadata__"), ENTRY | JSON, max_size=4), st.integers(0, 40))
def test_mutated_headers_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, entries: Any, data: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    write(path, entries, data)
    try:
        header, found = load(path)
    except DayzeroError as error:
        assert "\n" not in error.message + error.hint
    else:
        assert len(found.kind) == len(header.entries) and header.size <= header.data_end


@given(st.data())
def test_a_real_header_with_bytes_changed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    raw = bytearray(small_release.header(GOOD) + bytes(16))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 17))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        load(path)
    except DayzeroError as error:
        assert "\n" not in error.message + error.hint


def test_numbers_in_json_stay_exact(tmp_path: Path) -> None:
    """Offsets over 2^53 (a shard of petabytes) are not floats on the way."""
    size = 2**55 + 2
    entries = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header, _ = load(write(tmp_path / "m.safetensors", entries, data=0))
    assert header.data_end - header.data_start == size
