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
from dayzero.stages.check.stored import cast, values
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


def _with(folder: Path, value: np.ndarray):
    """The release with these values in one matrix, in their dtype."""
    return _write(folder, _arrays() | {Q1: np.broadcast_to(value, (64, 64)).copy()})


def test_what_a_cast_makes_of_the_reference_is_the_same(tmp_path: Path, reference) -> None:
    """Rounded to nearest, ties to even, by numpy's own conversion, with what becomes subnormal or zero."""
    half = {name: value.astype(np.float16) for name, value in _arrays().items()}
    assert compare(_write(tmp_path / "half", half), reference).differ == []
    fine = np.random.default_rng(1).normal(0, 2.0**-16, (64, 64)).astype(np.float32)
    theirs = _with(tmp_path / "fine", fine)
    assert compare(_with(tmp_path / "cast", fine.astype(np.float16)), theirs).differ == []
    cut = np.nextafter(fine.astype(np.float16), np.float16(0))
    assert [each.name for each in compare(_with(tmp_path / "cut", cut), theirs).differ] == [Q1]


def test_what_the_cast_loses_is_found(tmp_path: Path) -> None:
    theirs = _with(tmp_path / "theirs", np.float32(70_000))  # the largest f16 is 65504
    with np.errstate(over="ignore"):
        ours = _with(tmp_path / "ours", np.float32(70_000).astype(np.float16))
    assert [each.name for each in compare(ours, theirs).differ] == [Q1]


def test_a_finer_dtype_has_to_hold_the_very_values(tmp_path: Path) -> None:
    """A factor of 1.0003 is within the roundoff of f16, and not what was published."""
    theirs = _with(tmp_path / "theirs", np.float16(3))
    assert compare(_with(tmp_path / "same", np.float32(3)), theirs).differ == []
    found = compare(_with(tmp_path / "ours", np.float32(3 * 1.0003)), theirs).differ
    assert [(each.name, pytest.approx(0.0003, rel=1e-2)) for each in found] == [(Q1, found[0].relative_l2)]


@pytest.mark.parametrize(("single", "bits"), [
    (1.0, 0x3F80), (1 + 2.0**-8, 0x3F80), (1 + 3 * 2.0**-8, 0x3F82), (1 + 2.0**-8 + 2.0**-20, 0x3F81),
    (2.0**-133, 0x0001), (2.0**-140, 0x0000), (np.inf, 0x7F80), (-np.finfo(np.float32).max, 0xFF80)])
def test_rounding_to_bf16_by_hand(single: float, bits: int) -> None:
    """8 bits of significand: ties go to the even one. The smallest subnormal is 2^-133."""
    expected = values(np.array([bits], "<u2").tobytes(), "BF16")
    assert cast(np.array([single], np.float32), "BF16").tolist() == expected.tolist()


def test_a_tensor_of_another_shape_is_wrong(tmp_path: Path, reference) -> None:
    """As many parameters, under the same name: nothing says that it is only another form."""
    ours = _arrays()
    ours[Q1] = ours[Q1].reshape(32, 128) * 7
    found = compare(_write(tmp_path / "ours", ours), reference)
    assert [each.name for each in found.differ] == [Q1] and found.other_form == []


def test_integers_in_place_of_weights_are_wrong(tmp_path: Path, reference) -> None:
    found = compare(_with(tmp_path / "ours", np.int64(1)), reference)
    assert [each.name for each in found.differ] == [Q1] and found.other_form == []


def test_a_tensor_too_many_is_told(tmp_path: Path, reference) -> None:
    extra = _arrays() | {"model.more": np.ones(3, np.int32)}
    found = compare(_write(tmp_path / "ours", extra), reference)
    assert [each.name for each in found.differ] == ["model.more"]
    buffer = _arrays() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    assert compare(_write(tmp_path / "buffer", buffer), reference).differ == []


def test_renamed_tensors_of_a_layer_are_not_compared(tmp_path: Path, reference) -> None:
    ours = _arrays()
    ours["model.layers.1.self_attn.query.weight"] = ours.pop(Q1)
    found = compare(_write(tmp_path / "ours", ours), reference)
    assert found.differ == [] and found.other_form == [Q1, "model.layers.1.self_attn.query.weight"]


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
    assert "of 9 tensors such as model.layers.0.mlp.gate_proj.weight" in next(iter(files.not_made))


def test_the_same_files_are_not_compared(reference) -> None:
    files = check_files(reference, reference, SILENT)
    assert files.checks == [] and files.not_made == {}
    assert list(files.needless.values()) == ["the reference is the same files"]


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_config.json"])
def test_what_a_loader_takes_in_place_of_what_was_read_fails(tmp_path: Path, name: str) -> None:
    folder = small_release.write(tmp_path / "ours")
    (folder / name).write_bytes(b"{}")
    release = read(str(folder))
    (found,) = check_files(release, release, SILENT).checks
    assert not found.passed and found.detail == f"{name} of ours"
    beside = check_files(read(str(small_release.write(tmp_path / "same"))), release, SILENT).checks
    assert next((each.passed, each.detail) for each in beside) == (False, f"{name} of ours")


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
