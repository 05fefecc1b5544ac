"""What differs beside the weights: keys and files that no prompt exercises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import small_release

from dayzero.errors import ReleaseError
from dayzero.stages.check.config import check_config, check_sizes
from dayzero.stages.read import read

CONFIG = small_release.CONFIG | {"eos_token_id": 2, "sliding_window": 64}
SUGGESTED = {"eos_token_id": [2, 3], "temperature": 0.6, "transformers_version": "4.50.0"}


def _write(folder: Path, changes: dict[str, Any] | None = None, suggested: dict[str, Any] | None = SUGGESTED):
    """`changes`: None in place of a value removes the key."""
    small_release.write(folder)
    changed = CONFIG | (changes or {})
    (folder / "config.json").write_text(json.dumps({key: value for key, value in changed.items() if value != "-"}))
    if suggested is not None:
        (folder / "generation_config.json").write_text(json.dumps(suggested))
    return read(str(folder))


@pytest.fixture
def reference(tmp_path: Path):
    return _write(tmp_path / "reference")


def _odd(release, reference) -> str:
    (found,), not_made = check_config(release, reference)
    assert not_made == {}
    return "" if found.passed else found.detail


@pytest.mark.parametrize(("changes", "detail"), [
    ({"sliding_window": None}, "sliding_window is null instead of 64"),
    ({"sliding_window": 48}, "sliding_window is 48 instead of 64"),
    ({"use_sliding_window": True}, "use_sliding_window is true instead of absent"),
    ({"model_type": "mistral"}, "model_type is \"mistral\" instead of \"llama\""),
    ({"max_position_embeddings": 1024}, "max_position_embeddings is 1024 instead of 512"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "factor is 2.0 instead of"),
    ({"eos_token_id": 7}, "eos_token_id is 7 instead of 2"),
    ({"torch_dtype": "float32"}, "dtype is \"float32\" instead of \"bfloat16\""),
    ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06 instead of 1e-05"),
    ({"attention_dropout": True}, "attention_dropout is true instead of"),
    ({"something_new": [1]}, "something_new is [1] instead of absent"),
])
def test_a_key_that_has_an_effect(tmp_path: Path, reference, changes: dict[str, Any], detail: str) -> None:
    assert detail in _odd(_write(tmp_path / "ours", changes), reference)


@pytest.mark.parametrize("changes", [
    {}, {"transformers_version": "5.0.0", "_name_or_path": "x", "use_cache": False, "initializer_range": 0.5},
    {"torch_dtype": "-", "dtype": "bfloat16"},                # another spelling
    {"attention_bias": False},                                # stated as it is by default
    {"rope_theta": "-", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
])
def test_what_has_none(tmp_path: Path, reference, changes: dict[str, Any]) -> None:
    assert _odd(_write(tmp_path / "ours", changes), reference) == ""


def test_a_type_that_the_library_does_not_know_is_compared_as_written(tmp_path: Path) -> None:
    theirs = _write(tmp_path / "theirs", {"model_type": "new", "inner": {"a": 1, "b": {}}})
    assert _odd(_write(tmp_path / "same", {"model_type": "new", "inner": {"b": {}, "a": 1}}), theirs) == ""
    ours = _write(tmp_path / "ours", {"model_type": "new", "inner": {"a": 2, "b": {}}})
    assert _odd(ours, theirs) == "inner.a is 2 instead of 1"


@pytest.mark.parametrize(("suggested", "detail"), [
    (SUGGESTED | {"temperature": 0.7}, "generation_config.json:temperature is 0.7 instead of 0.6"),
    (SUGGESTED | {"eos_token_id": 2}, "generation_config.json:eos_token_id is 2 instead of [2, 3]"),
    (None, "generation_config.json:eos_token_id is 2 instead of [2, 3]"),  # the config's then counts
    (SUGGESTED | {"transformers_version": "5", "pad_token_id": None}, ""),
])
def test_what_is_suggested_for_generating(tmp_path: Path, reference, suggested, detail: str) -> None:
    odd = _odd(_write(tmp_path / "ours", suggested=suggested), reference)
    assert detail in odd and bool(odd) == bool(detail)


def test_a_conversion_may_state_the_dtype_of_its_files(tmp_path: Path, reference, monkeypatch) -> None:
    """16 bits of one kind are as many as of the other."""
    tensors = {name: ("F16", shape) for name, (_, shape) in small_release.tensors().items()}
    monkeypatch.setattr(small_release, "tensors", lambda: tensors)
    assert _odd(_write(tmp_path / "half", {"torch_dtype": "float16"}), reference) == ""
    assert "dtype is \"float32\"" in _odd(_write(tmp_path / "odd", {"torch_dtype": "float32"}), reference)


def test_other_configs_and_code(tmp_path: Path, reference) -> None:
    ours = _write(tmp_path / "ours")
    (tmp_path / "ours" / "modeling_small.py").write_text("# another\n")
    (tmp_path / "ours" / "preprocessor_config.json").write_text("{}")
    assert _odd(read(str(tmp_path / "ours")), reference) == (
        "modeling_small.py has other content; preprocessor_config.json is in this release alone")
    (tmp_path / "ours" / "generation_config.json").write_text("{")
    with pytest.raises(ReleaseError, match=r"generation_config\.json of ours is not JSON"):
        check_config(ours, reference)


def test_tables_of_other_formats_are_not_comparable(tmp_path: Path, reference) -> None:
    table = {"quantization_config": {"quant_method": "fp8"}}
    assert "quantization_config.quant_method" in _odd(_write(tmp_path / "plain", table), reference)
    ours = _write(tmp_path / "ours", table)
    (tmp_path / "ours" / "model-00001-of-00002.safetensors").unlink()
    small_release.ITEM["F8_E4M3"] = 1
    name = "model.layers.0.self_attn.q_proj.weight"
    held = {name: ("F8_E4M3", (64, 64)), name.replace("weight", "weight_scale"): ("F32", ())}
    small_release.write_shard(tmp_path / "ours" / "model-00001-of-00002.safetensors", held)
    ours = read(str(tmp_path / "ours"))
    (found,), not_made = check_config(ours, reference)
    assert found.passed and list(not_made) == ["config: tables of quantisation"]


def test_sizes(tmp_path: Path, reference) -> None:
    assert check_sizes(reference, reference) == []
    (found,) = check_sizes(_write(tmp_path / "ours", {"num_hidden_layers": 2}), reference)
    assert not found.passed and found.detail == "layers is 2 instead of 3"
