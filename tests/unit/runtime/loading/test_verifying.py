"""Files compared with their SHA-256 while parts of them are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dayzero.errors import ReleaseError, UsageError
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.loading.verifying import shared_out
from dayzero.schema.manifest import manifest_of, save_manifest

NAMES = ("model-1.safetensors", "model-2.safetensors")


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.first, self.second = torch.nn.Linear(256, 300), torch.nn.Linear(256, 200)


def _write(root: Path) -> dict[str, torch.Tensor]:
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(256, 300), "second": torch.nn.Linear(256, 200)})
    tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
    for file, part in zip(NAMES, ("first", "second"), strict=True):
        save_file({name: tensor for name, tensor in tensors.items() if name.startswith(part)}, root / file)
    return tensors


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _write(tmp_path)
    digests = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in NAMES}
    save_manifest(tmp_path, manifest_of(tmp_path, digests))
    return tmp_path


def _damage(path: Path) -> None:
    """The last byte, which is a tensor's."""
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("cut", [{}, {0: ((7, 100),)}, {1: ((0, 100),)}, {0: ((250, 300), (0, 20))}], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_all_of_a_file_is_verified_whatever_is_kept(cut: dict[int, tuple[tuple[int, int], ...]],
                                                    dtype: torch.dtype | None, root: Path) -> None:
    checkpoint = Checkpoint(root, Two())
    plain = checkpoint.read({"first.weight": cut}, dtype=dtype)
    assert checkpoint.verified == set()
    verified = checkpoint.read({"first.weight": cut}, dtype=dtype, verify=NAMES)
    assert torch.equal(plain["first.weight"], verified["first.weight"])
    assert checkpoint.verified == set(NAMES)


@pytest.mark.parametrize("cut", [{}, {0: ((0, 10),)}], ids=str)
def test_a_damaged_file_is_named(cut: dict[int, tuple[tuple[int, int], ...]], root: Path) -> None:
    _damage(root / NAMES[1])
    checkpoint = Checkpoint(root, Two())
    with pytest.raises(ReleaseError, match=r"model-2.safetensors has SHA-256 \w{64}, not \w{64} \(read twice\)$"):
        checkpoint.read({"second.weight": cut, "first.bias": {}}, verify=NAMES)
    assert checkpoint.verified == set()
    checkpoint.read({"second.weight": cut}, verify=NAMES[:1])  # nobody asked for the other


def test_what_is_read_wrongly_once_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wrong = os.preadv, [True]

    def preadv(file: int, targets: list[memoryview], at: int) -> int:
        count = plain(file, targets, at)
        if wrong.pop() if wrong else False:
            targets[0][0] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    checkpoint = Checkpoint(root, Two())
    read = checkpoint.read({"first.weight": {}}, verify=NAMES[:1])["first.weight"]
    assert not wrong and checkpoint.verified == set(NAMES[:1])
    assert torch.equal(read, Checkpoint(root, Two()).read({"first.weight": {}})["first.weight"])


def test_where_reads_differ_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, turn = os.preadv, [0]
    start = Checkpoint(root, Two()).files.tensors["first.weight"].start

    def preadv(file: int, targets: list[memoryview], at: int) -> int:
        count = plain(file, targets, at)
        if at <= start < at + count:
            turn[0] += 1
            for target in targets:
                if start < at + target.nbytes:
                    target[start - at] ^= turn[0]
                    break
                at += target.nbytes
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    # the start of the read that it is in: of the tensor's own, or of one that the header is in too
    named = rf"what follows byte ({start}, in first.weight|0, in the header), reads differently each time"
    with pytest.raises(ReleaseError, match=named):
        Checkpoint(root, Two()).read({"first.weight": {}}, verify=NAMES)


def test_files_without_a_digest_cannot_be_verified(root: Path) -> None:
    (root / "dayzero-manifest.json").unlink()
    checkpoint = Checkpoint(root, Two())
    assert checkpoint.verifies(0, 1) == ()
    with pytest.raises(UsageError, match=r"no SHA-256 is stated for model-1.safetensors, model-2.safetensors"):
        checkpoint.read({"first.weight": {}}, verify=NAMES)
    (root / "dayzero-manifest.json").write_text("[]")
    with pytest.raises(ReleaseError, match=r"dayzero-manifest.json is not a manifest"):
        Checkpoint(root, Two())


def test_ranks_share_files_out_by_size(root: Path) -> None:
    sizes = {"a": 10, "b": 6, "c": 5, "d": 1}
    assert [shared_out(sizes, rank, 2) for rank in range(2)] == [("a", "d"), ("b", "c")]
    assert sorted(Checkpoint(root, Two()).verifies(0, 2) + Checkpoint(root, Two()).verifies(1, 2)) == list(NAMES)
