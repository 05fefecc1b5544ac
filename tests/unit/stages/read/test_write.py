"""Releases without weights on disk read back as what they were written from."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from dayzero.errors import StoreError, UsageError
from dayzero.stages.read import read, write
from dayzero.stages.read.card import read_card
from dayzero.stages.read.write import write_release


@pytest.mark.parametrize("name", ["smollm2-135m", "gpt-oss-20b"])
def test_what_is_written_reads_back(root: Path, tmp_path: Path, name: str) -> None:
    source = read_card(root / "examples" / "cards" / f"{name}.toml")
    folder = write_release(source, tmp_path / "release", shard_bytes=10**9)
    back = read(folder, metadata_only=True)
    assert back.config == source.config
    assert back.index is None and back.missing_shards == () and not back.has_weights
    for one, two in zip(back.tensors.groups, source.tensors.groups, strict=True):
        assert (one.pattern, one.shape, one.dtype, one.layer, one.expert) == (
            two.pattern, two.shape, two.dtype, two.layer, two.expert)  # fmt: skip
    assert back.model == msgspec.structs.replace(source.model, name="release")
    assert len(back.tensors.files) >= source.tensors.total_bytes // 10**9


def test_data_starts_at_a_multiple_of_eight_bytes(root: Path, tmp_path: Path) -> None:
    """The safetensors format pads its header, so that mapped tensors are aligned."""
    folder = write_release(root / "examples" / "cards" / "gpt-oss-20b.toml", tmp_path / "release", shard_bytes=10**9)
    lengths = []
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            lengths.append(int.from_bytes(file.read(8), "little"))
    assert len(lengths) > 3 and all(length % 8 == 0 for length in lengths)


def test_it_hardly_takes_any_room(root: Path, tmp_path: Path) -> None:
    folder = write_release(root / "examples" / "cards" / "gpt-oss-20b.toml", tmp_path / "release")
    used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    assert used < 2**20 < 10**10 < sum(path.stat().st_size for path in folder.iterdir())


def test_a_folder_that_is_in_use(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("here")
    with pytest.raises(UsageError, match="not an empty folder"):
        write_release(root / "examples" / "cards" / "smollm2-135m.toml", tmp_path)


def test_a_folder_in_the_release(root: Path, tmp_path: Path) -> None:
    folder = write_release(root / "examples" / "cards" / "smollm2-135m.toml", tmp_path / "release")
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError, match="which is read"):
        write_release(read(folder, metadata_only=True), folder / "inner")
    assert sorted(folder.iterdir()) == before


def test_nothing_is_left_behind(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write._write_shard

    def full(path: Path, shard: list[write.Entry]) -> None:
        written(path, shard)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write, "_write_shard", full)
    with pytest.raises(StoreError, match="No space left on device"):
        write_release(root / "examples" / "cards" / "smollm2-135m.toml", tmp_path / "release")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(StoreError):
        write_release(root / "examples" / "cards" / "smollm2-135m.toml", tmp_path / "file" / "below")
