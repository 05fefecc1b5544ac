"""Reads of byte ranges, and what goes wrong with disks."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dayzero.errors import ReleaseError
from dayzero.runtime.loading import files as module
from dayzero.runtime.loading.files import Files

FIRST, SECOND = torch.arange(100, dtype=torch.int32), torch.arange(100, 300, dtype=torch.int32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save_file({"a.weight": FIRST, "b.weight": SECOND}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def _read(files: Files, name: str, first: int = 0, last: int | None = None) -> torch.Tensor:
    tensor = files.tensors[name]
    last = tensor.shape[0] if last is None else last
    data = bytearray((last - first) * 4)
    half = len(data) // 2
    files.read(tensor.file, tensor.start + first * 4, [memoryview(data)[:half], memoryview(data)[half:]])
    return torch.frombuffer(data, dtype=torch.int32)


def test_ranges_are_read_into_several_memories(root: Path) -> None:
    with Files(root) as files:
        assert torch.equal(_read(files, "a.weight"), FIRST)
        assert torch.equal(_read(files, "b.weight", 7, 90), SECOND[7:90])


def test_short_reads_go_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, targets, at: plain(file, [targets[0][:13]], at))
    with Files(root) as files:
        assert torch.equal(_read(files, "b.weight"), SECOND)


def _failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    plain, tried = os.preadv, [0]

    def preadv(file: int, targets: Any, at: int) -> int:
        tried[0] += 1
        if tried[0] <= times:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(file, targets, at)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(module, "_PAUSE", 0)
    return tried


def test_a_failed_read_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _failing(monkeypatch, 3)
    with Files(root) as files:
        assert torch.equal(_read(files, "a.weight"), FIRST)
    assert tried == [4]


def test_a_read_that_fails_for_good_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, 99)
    with Files(root) as files:
        byte = files.tensors["b.weight"].start + 8
        with pytest.raises(ReleaseError) as error:
            _read(files, "b.weight", 2)
    assert error.value.message == (
        f"cannot read b.weight at byte {byte} of model.safetensors: Input/output error (4 tries)")


def test_a_file_that_was_cut_short_is_named(root: Path) -> None:
    path = root / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    with Files(root) as files, pytest.raises(ReleaseError, match=r"model.safetensors ends at byte \d+, within b.we"):
        _read(files, "b.weight")


def test_a_file_that_changes_is_told(root: Path) -> None:
    with Files(root) as files:
        _read(files, "a.weight")
        save_file({"a.weight": FIRST + 1, "b.weight": SECOND}, root / "model.safetensors")
        with pytest.raises(ReleaseError, match="was changed while it was read"):
            files.check_unchanged(0)


def test_bytes_go_through_a_reader_that_is_given(root: Path) -> None:
    asked = []

    def reader(path: Path, start: int, memory: memoryview) -> None:
        asked.append((path.name, start, len(memory)))
        with path.open("rb") as file:
            file.seek(start)
            assert file.readinto(memory) == len(memory)

    with Files(root, reader) as files:
        assert torch.equal(_read(files, "a.weight"), FIRST)
        start = files.tensors["a.weight"].start
    assert asked == [("model.safetensors", start, 200), ("model.safetensors", start + 200, 200)]


@pytest.mark.parametrize(("content", "says"), [
    (b"", "has no header"),
    ((1 << 40).to_bytes(8, "little") + b"{}", "has no header"),
    ((2).to_bytes(8, "little") + b"[]", "does not describe tensors"),
    ((74).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}'.ljust(74) + b"1234",
     "has 4 bytes for"),
])  # fmt: skip
def test_what_is_no_safetensors_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ReleaseError, match=says):
        Files(tmp_path)


def test_the_index_says_which_files_count(root: Path) -> None:
    save_file({"c.weight": FIRST}, root / "other.safetensors")
    index = root / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "model.safetensors", "b.weight": "model.safetensors"}}))
    assert set(Files(root).tensors) == {"a.weight", "b.weight"}
    for name, says in (("gone.safetensors", "is missing"), ("../x.safetensors", "outside")):
        index.write_text(json.dumps({"weight_map": {"a.weight": name}}))
        with pytest.raises(ReleaseError, match=says):
            Files(root)
    index.unlink()
    for path in root.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ReleaseError, match="has no weights"):
        Files(root)
