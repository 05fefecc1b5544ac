"""Digests of files that were changed with their size and times kept: without `--force`, and with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support import small_release

from dayzero.pipeline import advance, open_job
from dayzero.schema import Release
from dayzero.stages.read import digests, read, verify, write_manifest

SHARD = "model-00001-of-00002.safetensors"
TARGET = """
[cluster]
device = {memory_bytes = 1000000000, memory_bandwidth = 1e10, flops = {bf16 = 1e12, f32 = 1e12}}
"""


def damage(path: Path) -> None:
    """Change the last byte in place and set the time of modification back."""
    before = path.stat()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def wrong(release: Release) -> list[str]:
    return [name for name, _, _ in verify(release)]


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, target = small_release.write(tmp_path / "small"), tmp_path / "some.toml"
    target.write_text(TARGET)
    write_manifest(root)
    job = advance(open_job(str(root), target, runs=tmp_path / "runs"), "read")
    assert wrong(job.need("read", Release)) == []
    damage(root / SHARD)
    job = advance(open_job(str(root), target, runs=tmp_path / "runs"), "read")
    assert wrong(job.need("read", Release)) == [SHARD]


def test_force_believes_nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "file_state", lambda path: f"{path}|1|1|1|1|1")  # a disk that keeps no times
    root, target = small_release.write(tmp_path / "small"), tmp_path / "some.toml"
    target.write_text(TARGET)
    write_manifest(root)
    damage(root / SHARD)
    assert wrong(read(root)) == []  # as remembered
    job = advance(open_job(str(root), target, runs=tmp_path / "runs"), "read", force=True)
    assert wrong(job.need("read", Release)) == [SHARD]
