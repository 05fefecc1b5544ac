"""Tensors of large releases are kept by the state of their files, and read again where one has changed."""

from pathlib import Path

import pytest

from dayzero.schema import Release
from dayzero.stages.read import kept as kept_tensors
from dayzero.stages.read import local, read, write_release

CARD = """
[card]
name = "small"
[config]
hidden_size = 64
num_hidden_layers = 3
num_attention_heads = 4
intermediate_size = 128
vocab_size = 100
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept_tensors, "LEAST", 1)
    card = tmp_path / "small.toml"
    card.write_text(CARD)
    return write_release(card, tmp_path / "release", shard_bytes=50_000)


def again(folder: Path, **options: bool) -> Release:
    return read(folder, metadata_only=True, cache=folder.parent / "cache", **options)


def test_the_same_comes_back_without_a_look_at_the_headers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = again(folder)
    monkeypatch.setattr(local, "read_header", lambda path, name: pytest.fail("a header was read"))
    assert again(folder) == first


def test_a_changed_shard_is_read(folder: Path) -> None:
    first = again(folder)
    shard = folder / first.tensors.files[0]
    shard.write_bytes(shard.read_bytes().replace(b'"BF16"', b'"F16" '))
    assert {group.dtype for group in again(folder).tensors.groups} >= {"F16"}


def test_it_is_read_when_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again(folder)
    looked = []
    real = local.read_header
    monkeypatch.setattr(local, "read_header", lambda path, name: (looked.append(name), real(path, name))[1])
    again(folder, again=True)
    assert looked


def test_a_release_with_a_gap_is_not_kept(folder: Path) -> None:
    (folder / again(folder).tensors.files[0]).unlink()
    gap = again(folder)
    assert gap.missing_shards and again(folder).missing_shards == gap.missing_shards


def test_damage_is_read_over(folder: Path) -> None:
    first = again(folder)
    (path,) = (folder.parent / "cache" / "tensors").iterdir()
    path.write_text("{")
    assert again(folder) == first


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tensors, "MOST", 2)
    for _ in range(3):
        shard = next(folder.glob("*.safetensors"))
        shard.touch()
        again(folder)
    assert len(list((folder.parent / "cache" / "tensors").iterdir())) == 2
