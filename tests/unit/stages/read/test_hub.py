"""Hub ids, against a hub on loopback: headers only, whole releases, and everything that can go wrong between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import small_release
from tests.support.stub_hub import COMMIT, REPO, StubHub, etag, serve

from dayzero.errors import HubError, ReleaseError, StoreError, UnsafePathError
from dayzero.stages.read import read, verify

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    """A hub with one small release, online and without waiting between tries."""
    import huggingface_hub.constants

    root = small_release.write(tmp_path / "served")
    (root / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", "")
    with serve(root) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        yield stub


def two_lines(error: Any) -> None:
    assert "\n" not in error.message and "\n" not in error.hint and error.exit_code == 2


def test_headers_only(hub: StubHub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    release = read(REPO, metadata_only=True, cache=cache)
    local = read(hub.folder, cache=cache)

    assert release.tensors == local.tensors and release.config == local.config and release.index is None
    assert (release.name, release.origin) == (REPO, f"hub:{REPO}@{COMMIT}")
    assert not release.has_weights and local.has_weights
    found = {file.name: file for file in release.files}
    shard = hub.folder / SHARD
    assert found[SHARD].size == shard.stat().st_size and found[SHARD].expected_sha256 == etag(shard)
    assert found[SHARD].origin == f"{hub.url}/{REPO}/resolve/{COMMIT}/{SHARD}" and found[SHARD].sha256 is None
    assert found["README.md"].size == 6 and ".gitattributes" not in found

    weights = sum(file.size for file in release.files if file.role == "weights")
    small = sum(file.size for file in release.files if file.role not in ("weights", "other"))
    headers = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in hub.folder.glob("*.safetensors"))
    assert hub.sent == small + headers < 0.1 * weights
    assert not any(name == "README.md" for _, name, _ in hub.requests)


def test_headers_are_fetched_once(hub: StubHub, tmp_path: Path) -> None:
    first = read(REPO, metadata_only=True, cache=tmp_path / "cache")
    hub.requests.clear()
    assert read(REPO, metadata_only=True, cache=tmp_path / "cache") == first
    assert [(method, path) for method, path, _ in hub.requests] == [("GET", f"/api/models/{REPO}")]


def test_headers_from_a_server_that_ignores_ranges(hub: StubHub, tmp_path: Path) -> None:
    hub.honours_ranges = False
    release = read(REPO, metadata_only=True, cache=tmp_path / "cache")
    assert release.tensors == read(hub.folder, cache=tmp_path / "cache").tensors


def test_headers_over_broken_connections(hub: StubHub, tmp_path: Path) -> None:
    hub.breaks[SHARD] = [3, 5, 100, 200]
    release = read(REPO, metadata_only=True, cache=tmp_path / "cache")
    assert release.tensors == read(hub.folder, cache=tmp_path / "cache").tensors
    ranges = [wanted for _, name, wanted in hub.requests if name == SHARD]
    assert ranges[:4] == ["bytes=0-7", "bytes=3-7", ranges[2], ranges[3]]
    assert ranges[2].startswith("bytes=8-") and ranges[3].startswith("bytes=108-")


def test_an_interrupted_fetch_of_headers_continues(hub: StubHub, tmp_path: Path) -> None:
    hub.breaks[SHARD] = [0] * 100
    with pytest.raises(HubError, match="broke 4 times") as error:
        read(REPO, metadata_only=True, cache=tmp_path / "cache")
    two_lines(error.value)
    assert not list((tmp_path / "cache").rglob("*.part"))
    hub.breaks.clear()
    hub.requests.clear()
    release = read(REPO, metadata_only=True, cache=tmp_path / "cache")
    assert release.tensors == read(hub.folder, cache=tmp_path / "cache").tensors
    assert {name for method, name, _ in hub.requests if method == "GET" and "/" not in name} == {SHARD}


def test_a_whole_release(hub: StubHub, tmp_path: Path) -> None:
    release = read(REPO, revision="main", cache=tmp_path / "cache")
    assert release.has_weights and release.tensors == read(hub.folder, cache=tmp_path / "cache").tensors
    assert verify(release) == ()
    assert {file.name: file.sha256 for file in release.files}[SHARD] == etag(hub.folder / SHARD)
    assert not any(name == "README.md" for _, name, _ in hub.requests)


def test_a_download_continues_after_a_break(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)  # it keeps whole chunks; 10 MB by default
    hub.breaks[SHARD] = [1000, 20_000]
    release = read(REPO, cache=tmp_path / "cache")
    assert verify(release) == () and release.has_weights
    ranges = [wanted for method, name, wanted in hub.requests if name == SHARD and method == "GET"]
    assert ranges == ["", "bytes=1000-", "bytes=21000-"]


def test_a_busy_hub_is_asked_again(hub: StubHub, tmp_path: Path) -> None:
    hub.busy = 2
    assert read(REPO, metadata_only=True, cache=tmp_path / "cache").tensors.count == len(small_release.tensors())


@pytest.mark.parametrize(
    ("repo", "revision", "says"),
    [("org/absent", None, "has no model org/absent"), (REPO, "v9", "no revision 'v9'"), ("org--x/y", None, "no")],
)
def test_what_the_hub_does_not_have(hub: StubHub, tmp_path: Path, repo: str, revision: str | None, says: str) -> None:
    with pytest.raises(HubError, match=says) as error:
        read(repo, revision=revision, cache=tmp_path / "cache")
    two_lines(error.value)


@pytest.mark.parametrize("metadata_only", [True, False])
def test_a_gated_release(hub: StubHub, tmp_path: Path, metadata_only: bool) -> None:
    hub.gated = True
    with pytest.raises(HubError, match="gated") as error:
        read(REPO, metadata_only=metadata_only, cache=tmp_path / "cache")
    two_lines(error.value)
    assert "HF_TOKEN" in error.value.hint


def test_an_unreachable_hub(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="broke 4 times") as error:
        read(REPO, metadata_only=True, cache=tmp_path / "cache")
    two_lines(error.value)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/evil.json", "a\\b.json"])
def test_a_listing_that_leaves_the_folder(hub: StubHub, tmp_path: Path, name: str) -> None:
    hub.extra = [{"rfilename": name, "size": 10, "blobId": "x"}]
    with pytest.raises(UnsafePathError) as error:
        read(REPO, metadata_only=True, cache=tmp_path / "cache")
    two_lines(error.value)


def test_no_config_and_pickles_are_refused_before_weights_are_fetched(hub: StubHub, tmp_path: Path) -> None:
    for path in (*hub.folder.glob("*.safetensors"), hub.folder / "model.safetensors.index.json"):
        path.unlink()
    (hub.folder / "pytorch_model.bin").write_bytes(b"\x80" * 100)
    with pytest.raises(ReleaseError, match="unpickled"):
        read(REPO, cache=tmp_path / "cache")
    assert not any(name == "pytorch_model.bin" for _, name, _ in hub.requests)
    (hub.folder / "config.json").unlink()
    with pytest.raises(ReleaseError, match=r"no config.json"):
        read(REPO, cache=tmp_path / "cache")


def test_a_shard_whose_header_is_longer_than_itself(hub: StubHub, tmp_path: Path) -> None:
    (hub.folder / SHARD).write_bytes((10**6).to_bytes(8, "little") + b"{}")
    with pytest.raises(ReleaseError, match="states a header"):
        read(REPO, metadata_only=True, cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_written(hub: StubHub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StoreError) as error:
        read(REPO, metadata_only=True, cache=tmp_path / "cache")
    two_lines(error.value)


def test_offline(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for metadata_only in (True, False):
        with pytest.raises(HubError) as error:
            read(REPO, metadata_only=metadata_only, cache=tmp_path / "cache")
        two_lines(error.value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    online = [read(REPO, metadata_only=metadata_only, cache=tmp_path / "cache") for metadata_only in (True, False)]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    for metadata_only, before in zip((True, False), online, strict=True):
        after = read(REPO, metadata_only=metadata_only, cache=tmp_path / "cache")
        assert (after.tensors, after.origin, after.has_weights) == (before.tensors, before.origin, before.has_weights)
        assert verify(after) == ()
    assert hub.requests == []


@pytest.mark.slow
def test_by_environment_alone(hub: StubHub, tmp_path: Path) -> None:
    """A new process that knows the hub, the token and the caches only from its environment."""
    code = ("from dayzero.stages.read import read; "
            f"r = read({REPO!r}, metadata_only=True); print(r.tensors.count, r.root)")  # fmt: skip
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg"),
           "HF_ENDPOINT": hub.url}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    count, root = done.stdout.split()
    assert int(count) == len(small_release.tensors()) and Path(root).is_relative_to(tmp_path / "xdg" / "dayzero")
    assert done.stderr == ""
