"""Folders: safe names, bad configs, roles, holes, and the whole of `read` on a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import small_release

from dayzero.errors import DayzeroError, ReleaseError, UnsafePathError, UsageError
from dayzero.schema import Release, from_json, to_json
from dayzero.stages.read import read
from dayzero.stages.read.folder import holds_data, inside, list_files, read_config, role, safe_name
from dayzero.stages.read.headers import read_header


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "..", "a/.", "C:\\x", "C:x",
                                  "a\\b", "a\0b", "a\nb", "x/"])  # fmt: skip
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafePathError):
        inside(tmp_path, name)


@given(st.text())
def test_a_safe_name_stays_inside(name: str) -> None:
    root = Path("/some/where/release")
    try:
        safe_name(name)
    except UnsafePathError as error:
        assert "\n" not in error.message + error.hint
    else:
        assert Path(os.path.normpath(root / name)).is_relative_to(root) and Path(os.path.normpath(root / name)) != root


def test_links(tmp_path: Path) -> None:
    root = tmp_path / "release"
    root.mkdir()
    (tmp_path / "outside").write_text("x")
    (root / "real").write_text("x")
    (root / "fine").symlink_to("real")
    (root / "leaves").symlink_to("../outside")
    (root / "loop").symlink_to("loop")
    assert inside(root, "fine").read_text() == "x"
    with pytest.raises(UnsafePathError, match="link that leaves"):
        inside(root, "leaves")
    (root / "leaves").unlink()
    with pytest.raises(ReleaseError):
        list_files(root)
    (root / "loop").unlink()
    (root / "nowhere").symlink_to("absent")
    os.mkfifo(root / "pipe")
    assert list(list_files(root)) == ["fine", "real"]


def test_links_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    """huggingface_hub keeps `snapshots/<commit>/name -> ../../blobs/<sha256>`."""
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / ("a" * 40)
    small_release.write(snapshot)
    (repo / "blobs").mkdir()
    shard, digest = snapshot / "model-00001-of-00002.safetensors", "b" * 64
    shard.rename(repo / "blobs" / digest)
    shard.symlink_to(f"../../blobs/{digest}")
    found = {file.name: file for file in read(snapshot, cache=tmp_path / "cache").files}
    assert found[shard.name].expected_sha256 == digest and found[shard.name].sha256 not in (None, digest)
    shard.unlink()
    shard.symlink_to("../../../elsewhere")
    with pytest.raises(UnsafePathError):
        read(snapshot, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"[1]", "not a JSON object but list"),
        (b"null", "not a JSON object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        (b" " * (16 * 2**20 + 1), "16777217 bytes"),
    ],
)
def test_bad_configs(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ReleaseError, match=says) as error:
        read(tmp_path)
    assert "\n" not in error.value.message + error.value.hint and error.value.exit_code == 2


@given(st.binary(max_size=60))
def test_random_configs(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "configs"
    root.mkdir(exist_ok=True)
    (root / "config.json").write_bytes(content)
    try:
        assert isinstance(read_config(root)[0], dict)
    except DayzeroError as error:
        assert "\n" not in error.message + error.hint


def test_config_that_pythons_json_wrote(tmp_path: Path) -> None:
    """A byte-order mark and Infinity, which real configs have (a state-space model's time_step_limit)."""
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"time_step_limit": [0.0, Infinity]}')
    assert read_config(tmp_path) == ({"time_step_limit": [0.0, float("inf")]}, "config.json")


def test_config_that_is_a_folder_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ReleaseError, match="regular file"):
        read(tmp_path)
    (tmp_path / "config.json").rmdir()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ReleaseError, match="regular file"):
        read(tmp_path)


def test_what_is_not_a_release(tmp_path: Path) -> None:
    sources = (tmp_path, tmp_path / "absent", "nothing", "a/b/c", "",
               "-", "bad id/with space", "a\0b/c", "x" * 5000)
    for source in sources:
        with pytest.raises(ReleaseError, match="not a release folder"):
            read(source)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ReleaseError, match="not a release folder"):
        read(file)
    with pytest.raises(UsageError, match="revision"):
        read(small_release.write(tmp_path / "r"), revision="main")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt",
                                  "consolidated.00.pth", "original/consolidated.00.pth"])  # fmt: skip
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    small_release.write(tmp_path)
    for shard in (*tmp_path.glob("*.safetensors"), tmp_path / "model.safetensors.index.json"):
        shard.unlink()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ReleaseError, match="nothing is unpickled here, ever") as error:
        read(tmp_path)
    assert "writes safetensors" in error.value.hint


def test_a_file_name_that_is_not_text(tmp_path: Path) -> None:
    small_release.write(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.json")).write_text("{}")
    with pytest.raises(UnsafePathError, match=r"udcff"):
        read(tmp_path, cache=tmp_path / ".cache")


def test_pickles_beside_safetensors_do_not_matter(tmp_path: Path) -> None:
    small_release.write(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02")
    release = read(tmp_path, cache=tmp_path / ".cache")
    assert {f.name: f.role for f in release.files}["pytorch_model.bin"] == "other"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("config.json", "config"), ("generation_config.json", "config"), ("hf_quant_config.json", "config"),
     ("tokenizer_config.json", "tokenizer"), ("tokenizer.json", "tokenizer"), ("tiktoken.model", "tokenizer"),
     ("vocab.json", "tokenizer"), ("chat_template.jinja", "tokenizer"), ("modeling_x.py", "code"), ("sub/x.py", "code"),
     ("model.safetensors.index.json", "index"), ("model.safetensors", "weights"), ("consolidated.safetensors", "other"),
     ("README.md", "other")],
)  # fmt: skip
def test_roles(name: str, expected: str) -> None:
    assert role(name, {"model.safetensors"}) == expected


def test_reads_a_release(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("hidden")
    release = read(str(root), cache=tmp_path / "cache")

    assert (release.name, release.origin, release.root) == ("small", str(root), str(root))
    assert sorted(release.tensors.names()) == sorted(small_release.tensors())
    assert release.tensors.files == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert release.has_weights and release.index is None and release.missing_shards == ()
    assert release.config == small_release.CONFIG
    assert release.model.hidden_size == 64 and len(release.model.layers) == 3
    assert {file.name: (file.role, file.size) for file in release.files} == {
        path.name: (kind, path.stat().st_size) for path, kind in ((root / name, kind) for name, kind in [
            ("README.md", "other"), ("config.json", "config"), ("model-00001-of-00002.safetensors", "weights"),
            ("model-00002-of-00002.safetensors", "weights"), ("model.safetensors.index.json", "index"),
            ("modeling_small.py", "code"), ("tokenizer.json", "tokenizer")])}  # fmt: skip
    assert from_json(to_json(release), Release) == release


def test_the_places_of_tensors_are_where_their_bytes_are(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    release = read(root, cache=tmp_path / "cache")
    group = next(g for g in release.tensors.groups if g.pattern == "model.layers.{L}.self_attn.k_proj.weight")
    row = list(group.layer.values).index(2)
    path = root / release.tensors.files[group.file.values[row]]
    header = read_header(path, path.name)
    begin, end = header.entries["model.layers.2.self_attn.k_proj.weight"].data_offsets or (0, 0)
    assert int(group.start.values[row]) == header.data_start + begin
    assert end - begin == group.tensor_bytes == 32 * 64 * 2


def test_config_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_release.CONFIG))
    release = read(tmp_path, cache=tmp_path / ".cache")
    assert not release.has_weights and release.tensors.count == 0 and release.tensors.files == ()


def grow(tensors: small_release.Tensors) -> small_release.Tensors:
    return {name: (dtype, (1024, 64)) if name.startswith("lm_head") else (dtype, shape)
            for name, (dtype, shape) in tensors.items()}  # fmt: skip


def test_a_hole_is_not_data(tmp_path: Path) -> None:
    hole, dense, tail = (tmp_path / name for name in ("hole", "dense", "tail"))
    small_release.write_shard(hole, grow(small_release.tensors()), hole=True)
    small_release.write_shard(dense, grow(small_release.tensors()))
    small_release.write_shard(tail, {"a": ("U8", (9,))}, hole=False)
    if hole.stat().st_blocks * 512 > hole.stat().st_size // 2:
        pytest.skip("this file system keeps no holes")
    starts = {path: read_header(path, path.name).data_start for path in (hole, dense, tail)}
    assert {path.name: holds_data(path, start) for path, start in starts.items()} == {
        "hole": False, "dense": True, "tail": True}  # fmt: skip
    with hole.open("r+b") as file:  # a few values inside the hole make no release of it
        file.seek(100_000)
        file.write(b"\1" * 100)
    assert not holds_data(hole, starts[hole])


def test_headers_only_releases_have_no_weights_and_are_not_hashed(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small", shards=2, hole=True)
    release = read(root, cache=tmp_path / "cache")
    assert not release.has_weights
    assert all((file.sha256 is None) == (file.role in ("weights", "other")) for file in release.files)
    assert release.tensors == read(small_release.write(tmp_path / "full"), cache=tmp_path / "cache").tensors


def test_a_shard_cut_short_is_read_but_counts_as_no_weights(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    shard = root / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1000)
    release = read(root, cache=tmp_path / "cache")
    assert not release.has_weights and sorted(release.tensors.names()) == sorted(small_release.tensors())
    ends = [int(group.start.values[row]) + group.tensor_bytes for group in release.tensors.groups
            for row in range(group.count) if group.file.values[row] == 1]  # fmt: skip
    assert max(ends) == next(f.size for f in release.files if f.name == shard.name) + 1000


def test_a_header_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    os.truncate(root / "model-00002-of-00002.safetensors", 100)
    release = read(root, cache=tmp_path / "cache")
    assert release.cut_shards["model-00002-of-00002.safetensors"] > 100 and release.is_incomplete
    assert release.tensors.count and not release.has_weights


def test_reading_loads_no_hub_no_torch() -> None:
    code = ("import sys, dayzero.stages.read; "
            "sys.exit(bool({'torch', 'transformers', 'huggingface_hub', 'safetensors'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_real_release(real_model: Path, tmp_path: Path) -> None:
    """The counts are those of the model's own config: 30 layers of 9 tensors, embedding and final norm; bf16."""
    release: Any = read(real_model, cache=tmp_path)
    assert release.has_weights and release.tensors.count == 30 * 9 + 2
    assert release.tensors.total_bytes == 134_515_008 * 2
    assert all(file.sha256 for file in release.files if file.role == "weights")


def test_config_under_its_other_name(tmp_path: Path) -> None:
    # mistralai/Mistral-Large-3-675B-Instruct-2512 has params.json beside consolidated-*.safetensors, and no config.json
    (tmp_path / "params.json").write_text('{"dim": 7168, "moe": {"num_experts": 128}}')
    assert read_config(tmp_path) == ({"dim": 7168, "moe": {"num_experts": 128}}, "params.json")
    (tmp_path / "config.json").write_text('{"hidden_size": 7168}')
    assert read_config(tmp_path) == ({"hidden_size": 7168}, "config.json")
    assert role("params.json", ()) == "config"
