"""The files of two releases against each other: what is the same, what is not, and what cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support import small_release

from dayzero.errors import ReleaseError
from dayzero.progress import SILENT
from dayzero.schema import Divergence
from dayzero.stages.check.files import check_files
from dayzero.stages.check.layers import earlier
from dayzero.stages.check.weights import compare
from dayzero.stages.read import read

Arrays = dict[str, np.ndarray]
Q1 = "model.layers.1.self_attn.q_proj.weight"


def _arrays(dtype: type = np.float32) -> Arrays:
    """Values that f16 has too."""
    random = np.random.default_rng(0)
    return {name: random.integers(1, 64, shape).astype(dtype) for name, (_, shape) in small_release.tensors().items()}


def _write(folder: Path, arrays: Arrays, shards: int = 1):
    small_release.write(folder)
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        path.unlink()
    names = list(arrays)
    for shard in range(shards):
        save_file({name: arrays[name] for name in names[shard::shards]}, folder / f"part{shard}.safetensors")
    return read(str(folder))


@pytest.fixture
def reference(tmp_path: Path):
    return _write(tmp_path / "reference", _arrays())


def test_sharded_differently_is_the_same(tmp_path: Path, reference) -> None:
    found = compare(_write(tmp_path / "ours", _arrays(), shards=3), reference)
    assert found == ([], 30, [])
    files = check_files(_write(tmp_path / "again", _arrays(), shards=2), reference, SILENT)
    assert [check.passed for check in files.checks] == [True] and files.divergence is None and not files.not_made


def test_one_changed_value_is_found(tmp_path: Path, reference) -> None:
    ours = _arrays()
    old = float(ours[Q1][3, 4])
    ours[Q1][3, 4] *= 2
    files = check_files(_write(tmp_path / "ours", ours), reference, SILENT)
    (check,), first = files.checks, files.divergence
    assert not check.passed and check.observed == 1.0 and check.detail.startswith(f"{Q1}; largest relative L2")
    assert first is not None and (first.place, first.layer, first.tensor) == ("layers.1", 1, Q1)
    assert first.relative_l2 == pytest.approx(old / np.linalg.norm(_arrays()[Q1]))


@pytest.mark.parametrize(("name", "place"), [
    ("model.embed_tokens.weight", "embedding"), ("model.layers.2.input_layernorm.weight", "layers.2"),
    ("model.norm.weight", "norm"), ("lm_head.weight", "logits")])
def test_where_a_tensor_takes_part(tmp_path: Path, reference, name: str, place: str) -> None:
    files = check_files(_write(tmp_path / "ours", _arrays() | {name: _arrays()[name] + 1}), reference, SILENT)
    assert files.divergence is not None and files.divergence.place == place


def test_swapped_layers(tmp_path: Path, reference) -> None:
    ours = _arrays()
    for name in list(ours):
        if ".layers.1." in name:
            other = name.replace(".1.", ".2.")
            ours[name], ours[other] = ours[other], ours[name]
    files = check_files(_write(tmp_path / "ours", ours), reference, SILENT)
    assert files.checks[0].observed == 18 and files.divergence is not None and files.divergence.layer == 1


def test_two_dtypes_are_compared_to_the_roundoff_of_the_coarser(tmp_path: Path, reference) -> None:
    half = {name: value.astype(np.float16) for name, value in _arrays().items()}
    assert compare(_write(tmp_path / "half", half), reference).differ == []
    exact = {name: (value * (1 + 2.0**-12)).astype(np.float32) for name, value in _arrays().items()}
    rounded = _write(tmp_path / "rounded", exact)  # half of the roundoff 2^-11 away
    assert compare(_write(tmp_path / "half2", half), rounded).differ == []
    half[Q1][0, 0] *= np.float16(1 + 2.0**-10)
    assert [each.name for each in compare(_write(tmp_path / "off", half), rounded).differ] == [Q1]


def test_no_numbers_are_far_and_fit_into_json(tmp_path: Path, reference) -> None:
    ours = _arrays()
    ours[Q1][:] = np.nan
    found = compare(_write(tmp_path / "ours", ours), reference)
    assert [each.name for each in found.differ] == [Q1] and np.isfinite(found.differ[0].relative_l2)


def test_bytes_of_other_dtypes_are_compared(tmp_path: Path) -> None:
    ours, theirs = (_arrays(np.int8) for _ in range(2))
    ours[Q1][0, :32] += 1
    found = compare(_write(tmp_path / "ours", ours), _write(tmp_path / "theirs", theirs))
    assert [(each.name, each.relative_l2) for each in found.differ] == [(Q1, 32 / 4096)]


def test_a_tensor_that_is_gone(tmp_path: Path, reference) -> None:
    ours = _arrays()
    del ours[Q1]
    found = compare(_write(tmp_path / "ours", ours), reference)
    assert [(each.name, each.relative_l2) for each in found.differ] == [(Q1, 1.0)] and found.other_form == []


def test_fused_tensors_are_not_comparable_and_that_is_said(tmp_path: Path, reference) -> None:
    ours = _arrays()
    for layer in range(3):
        parts = [ours.pop(f"model.layers.{layer}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        ours[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = np.concatenate(parts)
    files = check_files(_write(tmp_path / "ours", ours), reference, SILENT)
    assert [check.passed for check in files.checks] == [True]
    assert list(files.not_made.values()) == [
        "not comparable tensor by tensor: one release stores them in another form"]
    assert "of 6 tensors such as model.layers.0.mlp.gate_proj.weight" in next(iter(files.not_made))


def test_the_same_files_are_not_compared(reference) -> None:
    files = check_files(reference, reference, SILENT)
    assert files.checks == [] and list(files.not_made.values()) == ["the reference is the same files"]


def test_files_that_end_early(tmp_path: Path, reference) -> None:
    ours = _write(tmp_path / "ours", _arrays())
    path = tmp_path / "ours" / "part0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ReleaseError, match="ends inside"):
        compare(ours, reference)


def test_what_comes_first_in_the_model_is_named() -> None:
    def at(place: str, layout: str, tensor: str = "") -> Divergence:
        return Divergence(layout=layout, place=place, layer=None, relative_l2=1.0, before=0.0, tensor=tensor)

    files, seen = at("layers.3", "the files", "x"), at("layers.3", "pp=2")
    assert earlier(files, seen) == at("layers.3", "pp=2", "x")
    assert earlier(files, at("logits", "pp=2")) is files
    assert earlier(None, seen) is seen and earlier(files, None) is files
    assert earlier(at("logits", "the files", "x"), seen) is seen
    assert earlier(at("tower.1", "the files", "x"), at("norm", "pp=2")) == at("norm", "pp=2")
