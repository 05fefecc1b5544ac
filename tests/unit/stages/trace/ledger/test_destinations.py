"""The ledger of weights of small models that the library itself has written, and of copies with something wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from safetensors.torch import load_file, save_file
from tests.support import tiny
from tests.support.plan_models import target

from dayzero.errors import NotPossible
from dayzero.schema import Release, from_json, to_json
from dayzero.schema.coverage import Coverage
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read
from dayzero.stages.trace import coverage


def loaded(folder: Path, tmp_path: Path) -> Release:
    return read(folder, cache=tmp_path / "cache")


def rewrite(folder: Path, old: str, new: str | None) -> None:
    """Rename or remove one tensor, and leave the index out."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        if old in tensors:
            moved = tensors.pop(old)
            save_file(tensors | ({new: moved} if new else {}), file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


@pytest.mark.parametrize("make", [tiny.dense, tiny.experts])
def test_what_the_library_wrote_is_covered_completely(make, tmp_path: Path) -> None:
    release = loaded(make(tmp_path / "model"), tmp_path)
    ledger = coverage(release)
    assert ledger.placed == ledger.tensors == release.tensors.count
    assert not ledger.unfilled and not ledger.misshapen
    assert from_json(to_json(ledger), Coverage) == ledger
    found = preflight(release, target(1), declared=ledger)
    assert not [one for one in found.findings if one.rule.startswith("weights")]
    assert found.facts["coverage"]["placed"] == release.tensors.count


def test_experts_go_where_the_library_stacks_them(tmp_path: Path) -> None:
    ledger = coverage(loaded(tiny.experts(tmp_path / "model"), tmp_path))
    [line] = [one for one in ledger.destinations if one.pattern.endswith("experts.{E}.up_proj.weight")]
    assert (line.tensors, line.layers) == (4 * 8, (0, 1, 2, 3))
    assert line.parameter == "model.layers.{L}.mlp.experts.gate_up_proj"


def test_one_lost_matrix_of_one_expert(tmp_path: Path) -> None:
    folder = tiny.experts(tmp_path / "model")
    rewrite(folder, "model.layers.2.mlp.experts.5.up_proj.weight", None)
    release = loaded(folder, tmp_path)
    [gap] = coverage(release).unfilled
    assert (gap.parameter, gap.layers) == ("model.layers.{L}.mlp.experts.gate_up_proj", (2,))
    assert gap.filled == pytest.approx(1 - 1 / 16)  # one of 8 experts lacks one of its two halves
    found = preflight(release, target(1), declared=coverage(release))
    assert ("weights-dropped", "model.layers.2.mlp.experts.gate_up_proj") in {
        (one.rule, one.subject) for one in found.findings}


def test_a_name_that_the_library_does_not_know(tmp_path: Path) -> None:
    folder = tiny.dense(tmp_path / "model")
    rewrite(folder, "model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.out_proj.weight")
    release = loaded(folder, tmp_path)
    ledger = coverage(release)
    assert ledger.placed == ledger.tensors - 1
    assert [(gap.parameter, gap.layers, gap.filled) for gap in ledger.unfilled] == [
        ("model.layers.{L}.self_attn.o_proj.weight", (1,), 0.0)]
    told = {(one.rule, one.severity, one.subject) for one in preflight(release, target(1), declared=ledger).findings}
    assert ("weights-unexpected", "warning", "model.layers.1.self_attn.out_proj.weight") in told


def test_two_tensors_for_one_parameter(tmp_path: Path) -> None:
    # the library takes names with and without the prefix of the inner model, and loads both
    folder = tiny.dense(tmp_path / "model")
    save_file({"layers.1.mlp.up_proj.weight": torch.zeros(load_shape(folder, "model.layers.1.mlp.up_proj.weight"))},
              folder / "model-00009-of-00009.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    release = loaded(folder, tmp_path)
    ledger = coverage(release)
    assert [one.patterns for one in ledger.doubled] == [
        ("layers.{L}.mlp.up_proj.weight", "model.layers.{L}.mlp.up_proj.weight")]
    found = preflight(release, target(1), declared=ledger).findings
    assert ("weights-unexpected", "error", "layers.1.mlp.up_proj.weight") in {
        (one.rule, one.severity, one.subject) for one in found}


def load_shape(folder: Path, name: str) -> tuple[int, ...]:
    return next(tuple(tensors[name].shape) for tensors in map(load_file, sorted(folder.glob("*.safetensors")))
                if name in tensors)


def test_a_config_that_does_not_fit_the_files(tmp_path: Path) -> None:
    folder = tiny.dense(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 112}))
    odd = {one.pattern: (one.file, one.declared) for one in coverage(loaded(folder, tmp_path)).misshapen}
    assert odd["model.layers.{L}.mlp.up_proj.weight"] == ((96, 64), (112, 64))


def test_a_tied_head_needs_no_tensor(tmp_path: Path) -> None:
    folder = tiny.dense(tmp_path / "model", tie_word_embeddings=True)
    release = loaded(folder, tmp_path)
    assert "lm_head.weight" not in set(release.tensors.names())
    assert not coverage(release).unfilled


def test_why_there_is_none(tmp_path: Path) -> None:
    folder = tiny.dense(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    new = {"model_type": "of_tomorrow", "architectures": ["OfTomorrowForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config | new))
    release = loaded(folder, tmp_path)
    with pytest.raises(NotPossible, match="of_tomorrow"):
        coverage(release)
    found = preflight(release, target(1), declared=Coverage(impossible="no class"))
    assert [one.rule for one in found.findings if one.rule.startswith("weights")] == ["weights-unchecked"]
    assert "coverage" not in found.facts
