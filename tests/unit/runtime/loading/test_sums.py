"""Later reads of a file that was verified: what is not as it was is read again, then named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dayzero.errors import ReleaseError
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.loading.files import Files
from dayzero.runtime.loading.sums import BLOCK, Sums


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3 * BLOCK), st.data())
def test_any_range_is_compared(size: int, data: st.DataObject) -> None:
    """Added in any pieces; a change is found in the block that it is in, and nothing is found without one."""
    content, sums, at = bytearray(os.urandom(size)), Sums(), 0
    while at < size:
        step = data.draw(st.integers(1, size))
        sums.add(memoryview(content)[at:at + step])
        at += step
    sums.end()
    start = data.draw(st.integers(0, size - 1))
    length = data.draw(st.integers(0, size - start))
    (first, same), (end, last) = sums.edges(start, length)
    assert same == start and end == start + length and first % BLOCK == 0 and (last % BLOCK == 0 or last == size)
    middle = data.draw(st.integers(start, start + length))
    pieces = [memoryview(content)[a:b] for a, b in ((first, start), (start, middle), (middle, end), (end, last))]
    assert sums.wrong(first, pieces) is None
    if last > first:
        changed = data.draw(st.integers(first, last - 1))
        content[changed] ^= 1
        assert sums.wrong(first, pieces) == changed // BLOCK * BLOCK


def _written(root: Path) -> tuple[Files, int]:
    save_file({"a": torch.randn(300_000), "b": torch.randn(50_000)}, root / "model.safetensors")
    files = Files(root)
    files.sums[0] = sums = Sums()
    sums.add(memoryview((root / "model.safetensors").read_bytes()))
    sums.end()
    return files, files.tensors["a"].start


def test_a_read_that_was_wrong_once_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, start = _written(tmp_path)
    plain, wrong = os.preadv, [True]

    def preadv(file: int, targets: list[memoryview], at: int) -> int:
        count = plain(file, targets, at)
        if at == start + 400_000 and wrong:
            wrong.pop()
            targets[0][7] ^= 16
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    read = bytearray(1000)
    files.read(0, start + 400_000, [memoryview(read)[:300], memoryview(read)[300:]])
    assert not wrong and files.repaired == 1
    assert bytes(read) == (tmp_path / "model.safetensors").read_bytes()[start + 400_000:start + 401_000]


def test_a_file_that_decayed_is_named_with_the_tensor(tmp_path: Path) -> None:
    files, start = _written(tmp_path)
    path = tmp_path / "model.safetensors"
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(start + 900_000)
        byte = file.read(1)
        file.seek(start + 900_000)
        file.write(bytes([byte[0] ^ 4]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk does that fails
    fine = bytearray(1000)
    files.read(0, start, [memoryview(fine)])
    with pytest.raises(ReleaseError, match=r"model.safetensors is not what was verified: what follows byte \d+, in a, "
                                           r"has changed \(read twice\)"):
        files.read(0, start + 900_000 - 10, [memoryview(fine)])


def test_reads_are_compared_only_after_all_of_the_file_was_verified(tmp_path: Path) -> None:
    files, _ = _written(tmp_path)
    import hashlib

    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.empty(300_000, device="meta"))
    for stated, known in ((digest, True), ("0" * 64, False)):
        checkpoint = Checkpoint(tmp_path, model, digests={"model.safetensors": stated})
        assert checkpoint.files_of(["a"]) == ("model.safetensors",) and checkpoint.files.sums == {}
        if known:
            checkpoint.read({}, verify=["model.safetensors"])
        else:
            with pytest.raises(ReleaseError, match="has SHA-256"):
                checkpoint.read({}, verify=["model.safetensors"])
        assert (0 in checkpoint.files.sums) == known
    assert files.sums[0].wrong(0, [memoryview((tmp_path / "model.safetensors").read_bytes())]) is None
