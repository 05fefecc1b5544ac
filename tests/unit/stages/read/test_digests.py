"""Digests: right, remembered, never stale, compared with what was stated."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from tests.support import small_release

from dayzero.errors import ReleaseError, UnsafePathError
from dayzero.progress import Progress
from dayzero.stages.read import digests, file_digests, read, verify, write_manifest

SHARD = "model-00001-of-00002.safetensors"


class Heard(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float, float]] = []

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        self.said.append((text, done, total))


def truth(root: Path) -> dict[str, str]:
    files = (path for path in root.iterdir() if path.name != "README.md")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_digests_are_those_of_hashlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK", 1000)  # several chunks and a rest for each shard
    root = small_release.write(tmp_path / "small")
    heard = Heard()
    release = read(root, cache=tmp_path / "cache", progress=heard)
    assert {file.name: file.sha256 for file in release.files if file.role != "other"} == truth(root)
    assert file_digests(release, cache=tmp_path / "cache") == truth(root)
    text, done, total = heard.said[-1]
    assert text == "hashing files" and done == total == sum((root / name).stat().st_size for name in truth(root))


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_release.write(tmp_path / "small")
    read(root, cache=tmp_path / "cache")
    hashed: list[str] = []
    real = digests._sha256
    monkeypatch.setattr(digests, "_sha256", lambda path, meter: hashed.append(path.name) or real(path, meter))
    read(root, cache=tmp_path / "cache")
    assert hashed == []

    raw = bytearray((root / SHARD).read_bytes())
    raw[-1] ^= 1
    time.sleep(0.02)  # more than the clock tick of file times
    (root / SHARD).write_bytes(raw)
    release = read(root, cache=tmp_path / "cache")
    assert hashed == [SHARD]
    assert {f.name: f.sha256 for f in release.files}[SHARD] == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: bytes) -> None:
    root = small_release.write(tmp_path / "small")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "digests.json").write_bytes(damage)
    read(root, cache=cache)
    assert set(json.loads((cache / "digests.json").read_bytes()).values()) == set(truth(root).values())


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    (tmp_path / "cache").write_text("a file where the folder should be")
    release = read(root, cache=tmp_path / "cache")
    assert all(file.sha256 for file in release.files if file.role == "weights")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert digests.cache_folder() == tmp_path / "dayzero"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert digests.cache_folder() == Path("/home/someone/.cache/dayzero")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_release.write(tmp_path / "small")
    real = digests._sha256

    def slow(path: Path, meter: object) -> str:
        if path.name == SHARD:
            os.utime(path, ns=(1, 1))
        return real(path, meter)  # type: ignore[arg-type]

    monkeypatch.setattr(digests, "_sha256", slow)
    with pytest.raises(ReleaseError, match="changed while"):
        read(root, cache=tmp_path / "cache")


def test_manifest_and_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    root = small_release.write(tmp_path / "small")
    assert write_manifest(root, provenance="made for a test") == root / "dayzero-manifest.json"
    release = read(root)
    assert verify(release) == () and release.model.provenance == "made for a test"
    assert all(file.expected_sha256 for file in release.files if file.name != "dayzero-manifest.json")

    before = {file.name: file.sha256 for file in release.files}[SHARD]
    raw = bytearray((root / SHARD).read_bytes())
    raw[-1] ^= 1
    time.sleep(0.02)
    (root / SHARD).write_bytes(raw)
    assert verify(read(root)) == ((SHARD, before, hashlib.sha256(raw).hexdigest()),)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"a": {"size": "x"}}}'])
def test_a_damaged_manifest(tmp_path: Path, text: str) -> None:
    root = small_release.write(tmp_path / "small")
    (root / "dayzero-manifest.json").write_text(text)
    with pytest.raises(ReleaseError, match="damaged"):
        read(root, cache=tmp_path / "cache")


def test_a_manifest_that_names_a_file_outside(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    (root / "dayzero-manifest.json").write_text(json.dumps({"files": {"../x": {"size": 1}}}))
    with pytest.raises(UnsafePathError):
        read(root, cache=tmp_path / "cache")


def test_metadata_only_hashes_nothing(tmp_path: Path) -> None:
    release = read(small_release.write(tmp_path / "small"), metadata_only=True, cache=tmp_path / "cache")
    assert release.has_weights and all(file.sha256 is None for file in release.files)
    assert not (tmp_path / "cache").exists()


def test_what_was_hashed_before_an_interrupt_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {f"{number}": tmp_path / f"{number}.bin" for number in range(4)}
    for number, path in enumerate(paths.values()):
        path.write_bytes(b"x" * (1000 - number))  # the longest are read first
    real, read_now = digests._sha256, []

    def hashed(path: Path, meter: digests.Meter) -> str:
        read_now.append(path.stem)
        if path.stem == "3" and len(read_now) <= 4:
            time.sleep(0.2)  # until the others are done
            raise KeyboardInterrupt
        return real(path, meter)

    monkeypatch.setattr(digests, "_sha256", hashed)
    with pytest.raises(KeyboardInterrupt):
        digests.digest_paths(paths, tmp_path / "cache", Progress())
    assert digests.remembered(paths, tmp_path / "cache") == {"0", "1", "2"}
    found = digests.digest_paths(paths, tmp_path / "cache", Progress())
    assert sorted(read_now[4:]) == ["3"]
    assert found == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
    digests.digest_paths(paths, tmp_path / "cache", Progress(), again=True)
    assert len(read_now) == 4 + 1 + 4


def test_a_change_that_hides_its_time_is_seen(tmp_path: Path) -> None:
    """Same size, and the time of modification set back: the time of change still tells."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    status = path.stat()
    digests.digest_paths({"a": path}, tmp_path / "cache", Progress())
    time.sleep(0.02)
    path.write_bytes(b"behind")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.remembered({"a": path}, tmp_path / "cache") == frozenset()
    found = digests.digest_paths({"a": path}, tmp_path / "cache", Progress())
    assert found["a"] == hashlib.sha256(b"behind").hexdigest()
    assert len(json.loads((tmp_path / "cache" / "digests.json").read_bytes())) == 1, "one entry for each file"


def test_a_relative_cache_folder_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative $XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification 0.8)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for stated in ("", "cache", "./cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", stated)
        assert digests.cache_folder() == tmp_path / ".cache" / "dayzero"
    monkeypatch.setenv("XDG_CACHE_HOME", "/else/where")
    assert digests.cache_folder() == Path("/else/where/dayzero")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user whom the system does not know
    assert digests.cache_folder().is_absolute()
