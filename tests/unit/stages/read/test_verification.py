"""Files against what was published: by our manifest, by sha256sum's, by what the hub's tools leave behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from tests.support import small_release
from tests.support.stub_hub import COMMIT, REPO, StubHub, serve

from dayzero.errors import ReleaseError, UnsafePathError, UsageError
from dayzero.schema.manifest import MANIFEST, Manifest, save_manifest
from dayzero.stages.read import digests, verify_release, write_manifest
from dayzero.stages.read.verification import Published, Verification, verify_folder

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_release.write(tmp_path / "small")


@pytest.fixture
def check(root: Path, tmp_path: Path):
    def run(**how: object) -> Verification:
        return verify_folder(root, cache=tmp_path / "cache", **how)

    return run


def statuses(found: Verification) -> dict[str, str]:
    return {file.name: file.status for file in found.files if file.status != "same"}


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_a_folder_with_a_manifest(root: Path, check) -> None:
    write_manifest(root)
    assert check().passed and statuses(check()) == {}
    flip(root / SHARD)
    os.truncate(root / "tokenizer.json", 1)
    (root / "modeling_small.py").unlink()
    (root / "new.txt").write_text("x")
    found = check()
    assert not found.passed
    assert statuses(found) == {SHARD: "different", "tokenizer.json": "size", "modeling_small.py": "missing",
                               "new.txt": "unlisted"}
    one = next(file for file in found.files if file.name == SHARD)
    assert one.actual == hashlib.sha256((root / SHARD).read_bytes()).hexdigest() != one.expected


def test_what_was_read_is_not_read_again_unless_asked_for(root: Path, check) -> None:
    write_manifest(root, progress=digests.SILENT)
    total = sum(path.stat().st_size for path in root.iterdir() if path.name != MANIFEST)
    first = check()
    assert first.bytes_read == total
    second = check()
    assert second.bytes_read == 0 and all(file.remembered for file in second.files)
    assert check(again=True).bytes_read == total


def test_a_list_of_sha256sum(root: Path, tmp_path: Path, check) -> None:
    listed = subprocess.run(["sha256sum", SHARD, "./config.json"], cwd=root, capture_output=True, text=True, check=True)
    (tmp_path / "SHA256SUMS").write_text(listed.stdout)
    found = check(manifest=tmp_path / "SHA256SUMS")
    assert found.passed and sum(file.status == "same" for file in found.files) == 2
    flip(root / "config.json")
    assert statuses(check(manifest=tmp_path / "SHA256SUMS"))["config.json"] == "different"


@pytest.mark.parametrize(("text", "error"), [
    ("no digest here\n", ReleaseError), (f"{'a' * 64}  ../outside\n", UnsafePathError), ("{}", ReleaseError),
    ('{"files": {"/etc/passwd": {"size": 1, "sha256": "aa"}}}', UnsafePathError), ("", UsageError)])
def test_manifests_that_are_none(tmp_path: Path, check, text: str, error: type[Exception]) -> None:
    (tmp_path / "list").write_text(text)
    with pytest.raises(error):
        check(manifest=tmp_path / "list")


def test_a_hubs_listing(root: Path, check) -> None:
    digest = hashlib.sha256((root / SHARD).read_bytes()).hexdigest()
    size = (root / SHARD).stat().st_size
    listing = {SHARD: Published(digest=digest, size=size, needed=True),
               "config.json": Published(digest=None, size=(root / "config.json").stat().st_size, needed=True),
               "picture.png": Published(digest="a" * 64, size=3, needed=False)}
    found = check(listing=listing, origin="hub:x")
    assert found.passed and found.origin == "hub:x" and statuses(found)["picture.png"] == "absent"
    listing["model-00003-of-00003.safetensors"] = Published(digest="a" * 64, size=3, needed=True)
    assert statuses(check(listing=listing))["model-00003-of-00003.safetensors"] == "missing"


def test_notes_of_the_hubs_tools_in_a_plain_folder(root: Path, check) -> None:
    """huggingface_hub writes commit, etag and time; a small file's etag is git's blob id."""
    notes = root / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    content = (root / "config.json").read_bytes()
    blob = subprocess.run(["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True).stdout
    etags = {SHARD: hashlib.sha256((root / SHARD).read_bytes()).hexdigest(), "config.json": blob.decode().strip()}
    for name, etag in etags.items():
        (notes / f"{name}.metadata").write_text(f"{'c' * 40}\n{etag}\n1700000000.0\n")
    found = check()
    assert found.passed and {file.name for file in found.files if file.status == "same"} == set(etags)
    flip(root / SHARD)
    flip(root / "config.json")
    assert {name for name, status in statuses(check()).items() if status == "different"} == set(etags)


def test_blobs_of_the_hubs_cache(tmp_path: Path, root: Path) -> None:
    copy = tmp_path / "models--x" / "snapshots" / "c"
    blobs = tmp_path / "models--x" / "blobs"
    copy.mkdir(parents=True)
    blobs.mkdir()
    blob = blobs / hashlib.sha256((root / SHARD).read_bytes()).hexdigest()
    blob.write_bytes((root / SHARD).read_bytes())
    (copy / SHARD).symlink_to(blob)
    assert verify_folder(copy, cache=tmp_path / "cache").passed
    flip(blob)
    assert statuses(verify_folder(copy, cache=tmp_path / "cache")) == {SHARD: "different"}


def test_requests_that_cannot_be_served(root: Path, tmp_path: Path, check) -> None:
    with pytest.raises(UsageError, match="nothing states"):
        check()
    with pytest.raises(UsageError, match="no manifest"):
        check(manifest=tmp_path / "absent")
    with pytest.raises(UsageError, match="exclude"):
        verify_release(str(root), manifest=tmp_path, hub="a/b")
    with pytest.raises(ReleaseError, match="not a release folder"):
        verify_release("/no/such/folder")
    save_manifest(root, Manifest(files={}, headers_only=True))
    with pytest.raises(ReleaseError, match="headers only"):
        check()


@pytest.fixture
def hub(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub on loopback that serves a copy of the same release."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "")
    with serve(small_release.write(tmp_path / "served")) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        yield stub


def test_a_folder_against_a_hub(root: Path, tmp_path: Path, hub: StubHub) -> None:
    found = verify_release(str(root), hub=REPO, cache=tmp_path / "cache")
    assert found.passed and found.origin == f"hub:{REPO}@{COMMIT}"
    assert {file.name for file in found.files if file.status == "same"} >= {SHARD}
    flip(root / SHARD)
    assert statuses(verify_release(str(root), hub=REPO, cache=tmp_path / "cache"))[SHARD] == "different"
    (root / SHARD).unlink()
    assert statuses(verify_release(str(root), hub=REPO, cache=tmp_path / "cache"))[SHARD] == "missing"
