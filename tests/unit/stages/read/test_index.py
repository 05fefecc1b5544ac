"""The index: which shards there are, and that it agrees with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import small_release

from dayzero.errors import DayzeroError, ReleaseError, UnsafePathError
from dayzero.stages.read import read
from dayzero.stages.read.index import DEFAULT, choose, find, index_name

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def rewrite(root: Path, change: dict[str, str | None]) -> None:
    """Change entries of the weight map; None removes one."""
    index = json.loads((root / DEFAULT).read_text())
    index["weight_map"] = {k: v for k, v in (index["weight_map"] | change).items() if v is not None}
    (root / DEFAULT).write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../x", "../x.safetensors", "/etc/passwd", "sub/../../x.safetensors", ""])
def test_a_shard_outside_the_folder(tmp_path: Path, name: str) -> None:
    root = small_release.write(tmp_path / "small")
    rewrite(root, {"lm_head.weight": name})
    with pytest.raises(UnsafePathError) as error:
        read(root, cache=tmp_path / "cache")
    assert error.value.exit_code == 2 and "\n" not in error.value.message + error.value.hint


def test_a_shard_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    (root / TWO).rename(tmp_path / TWO)
    (root / TWO).symlink_to(tmp_path / TWO)
    with pytest.raises(UnsafePathError, match="link"):
        read(root, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": null}}',
     b'{"weight_map": {"a": "\xff"}}', b'{"weight_map": ' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_not_an_index(tmp_path: Path, content: bytes) -> None:
    root = small_release.write(tmp_path / "small")
    (root / DEFAULT).write_bytes(content)
    with pytest.raises(ReleaseError, match="not an index") as error:
        read(root, cache=tmp_path / "cache")
    assert "\n" not in error.value.message


def test_a_missing_shard(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    weight_map = json.loads((root / DEFAULT).read_text())["weight_map"]
    (root / TWO).unlink()
    release = read(root, cache=tmp_path / "cache")
    assert release.missing_shards == (TWO,) and not release.has_weights
    assert release.index == weight_map and release.tensors.files == (ONE,)


@pytest.mark.parametrize(
    "change",
    [{"lm_head.weight": None}, {"lm_head.weight": ONE}, {"extra.weight": ONE}],
    ids=["a tensor that the index forgot", "a tensor in another file", "a tensor that is nowhere"],
)
def test_an_index_that_disagrees_is_kept(tmp_path: Path, change: dict[str, str | None]) -> None:
    root = small_release.write(tmp_path / "small")
    rewrite(root, change)
    release = read(root, cache=tmp_path / "cache")
    assert release.index == json.loads((root / DEFAULT).read_text())["weight_map"]
    assert sorted(release.tensors.names()) == sorted(small_release.tensors())


def test_a_shard_that_the_index_forgot(tmp_path: Path) -> None:
    root = small_release.write(tmp_path / "small")
    rewrite(root, {name: None for name, file in json.loads((root / DEFAULT).read_text())["weight_map"].items()
                   if file == TWO})  # fmt: skip
    release = read(root, cache=tmp_path / "cache")
    assert release.tensors.files == (ONE, TWO) and release.index is not None


def test_single_file_and_numbered_files_without_an_index(tmp_path: Path) -> None:
    single = read(small_release.write(tmp_path / "single", shards=1), cache=tmp_path / "cache")
    assert single.tensors.files == ("model.safetensors",) and single.index is None and single.has_weights
    several = read(small_release.write(tmp_path / "several", shards=3, index=False), cache=tmp_path / "cache")
    assert len(several.tensors.files) == 3 and several.tensors.count == single.tensors.count


def test_gaps_in_numbered_files_without_an_index() -> None:
    assert choose({ONE, TWO}, None).missing == ()
    assert choose({TWO}, None).missing == (ONE,)
    assert choose({"m-0-of-2.safetensors"}, None).missing == ("m-1-of-2.safetensors",)
    assert choose({"m-00001-of-99999999999.safetensors", "other.safetensors"}, None).missing == ()


def test_copies_in_other_layouts_are_not_shards() -> None:
    names = {ONE, TWO, "model.safetensors.index.json", "consolidated.safetensors", "original/model.safetensors",
             "model-00001-of-00009.safetensors"}  # fmt: skip
    assert choose(names, {"a": ONE, "b": TWO}).present == (ONE, TWO)
    assert choose({"model.safetensors", "consolidated.safetensors"}, None).present == ("model.safetensors",)
    assert choose({"consolidated.safetensors"}, None).present == ("consolidated.safetensors",)
    assert choose({ONE, "consolidated.safetensors"}, None).present == (ONE,)


def test_a_stale_index_beside_a_single_file() -> None:
    shards = choose({"model.safetensors"}, {"a": ONE, "b": TWO})
    assert shards.present == ("model.safetensors",) and shards.missing == (ONE, TWO)


def test_which_index() -> None:
    assert index_name({"a.safetensors.index.json", DEFAULT}) == DEFAULT
    assert index_name({"a.safetensors.index.json", "x.json"}) == "a.safetensors.index.json"
    assert index_name({"a.safetensors.index.json", "b.safetensors.index.json"}) is None
    assert index_name({"sub/model.safetensors.index.json"}) is None


FILE = st.sampled_from([ONE, TWO, "../x", "config.json"])
JSON = st.recursive(st.none() | st.integers() | st.text(max_size=6) | FILE,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
                    max_leaves=8)  # fmt: skip


MAP = st.dictionaries(st.text(max_size=6), FILE | JSON, max_size=4)


@given(st.fixed_dictionaries({}, optional={"weight_map": MAP | JSON}))
def test_mutated_indexes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, index: Any) -> None:
    root = tmp_path_factory.getbasetemp() / "indexes"
    root.mkdir(exist_ok=True)
    (root / DEFAULT).write_text(json.dumps(index))
    try:
        shards = find(root, {DEFAULT, ONE, "config.json"})
    except DayzeroError as error:
        assert "\n" not in error.message + error.hint
    else:
        assert set(shards.present) | set(shards.missing) >= set(index["weight_map"].values())


def test_one_of_several_series_without_an_index() -> None:
    """The same tensors lie there in two layouts (as at mistralai/Mistral-7B-Instruct-v0.3)."""
    twice = ["model-00001-of-00001.safetensors", "consolidated-00001-of-00001.safetensors"]
    assert choose(twice, None).present == ("model-00001-of-00001.safetensors",)
    assert choose(twice[1:], None).present == ("consolidated-00001-of-00001.safetensors",)
