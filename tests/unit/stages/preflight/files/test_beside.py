"""Other weights beside those that were read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import small_release, tiny_release
from tests.support.plan_models import target as plan_target

from dayzero.stages.preflight import preflight
from dayzero.stages.read import read


def _told(folder: Path) -> set[tuple[str, str, str]]:
    found = preflight(read(str(folder)), plan_target(), select=("file-unlisted",)).findings
    return {(finding.severity, finding.subject, finding.message) for finding in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_release.write(tmp_path / "release")


def test_nothing_beside(folder: Path) -> None:
    (folder / "training_args.bin").write_bytes(b"")
    assert _told(folder) == set()


def test_a_single_file_comes_before_the_index(folder: Path) -> None:
    """The library loads it; the shards are what is read here."""
    small_release.write_shard(folder / "model.safetensors", small_release.tensors())
    assert _told(folder) == {("error", "model.safetensors", "loaders take model.safetensors before the index and its "
                                                            "shards, and it is not what was looked at")}
    assert read(str(folder)).unread == ("model.safetensors",)


def test_other_files_with_the_same_names(folder: Path) -> None:
    name = "model.norm.weight"
    small_release.write_shard(folder / "old.safetensors", {name: ("BF16", (64,))})
    assert _told(folder) == {
        ("error", "old.safetensors", f"old.safetensors holds {name}, and the index does not list the file")}


def test_a_forgotten_layer_of_the_same_model(folder: Path) -> None:
    # NVIDIA/Model-Optimizer#750: prediction layers in a file of their own, which the index has to list
    name = "model.layers.92.eh_proj.weight"
    small_release.write_shard(folder / "mtp.safetensors", {name: ("BF16", (64, 128))})
    assert _told(folder) == {
        ("error", name, f"mtp.safetensors holds {name}, and the index does not list the file")}


def test_another_layout_is_a_warning(folder: Path) -> None:
    small_release.write_shard(folder / "consolidated.safetensors", {"norm.weight": ("BF16", (64,))})
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "adapter_config.json"):
        (folder / name).write_text("{}")
    assert {told[:2] for told in _told(folder)} == {
        ("warning", "consolidated.safetensors"), ("warning", "pytorch_model-00001-of-00002.bin"),
        ("warning", "adapter_config.json")}


def test_without_an_index_the_single_file_is_what_is_read(tmp_path: Path) -> None:
    folder = small_release.write(tmp_path / "release", index=False)
    small_release.write_shard(folder / "model.safetensors", small_release.tensors())
    assert {severity for severity, _, _ in _told(folder)} == {"warning"}


def test_a_damaged_header_has_no_names(folder: Path) -> None:
    (folder / "old.safetensors").write_bytes(b"\xff" * 8)
    assert {told[:2] for told in _told(folder)} == {("warning", "old.safetensors")}
    assert _told(tiny_release.write(folder.parent / "tiny", tiny_release.dense_tensors())) == set()
