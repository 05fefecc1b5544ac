"""Real ranks on this machine: every kind of layout against one process in f32."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support import tiny

from dayzero.runtime.assignment import gradient_rows
from dayzero.schema import Layout, LayoutRun, RunRecord, Verdict
from dayzero.stages.check import check
from dayzero.stages.run import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _run(root: Path, folder: Path, *layouts: str, tokens: int = 12) -> RunRecord:
    chosen = tuple(Layout.parse(text) for text in layouts)
    return run(tiny.release(root), tiny.EMPTY_PLAN, tiny.target(max(each.world_size for each in chosen)),
               folder=folder, layouts=chosen, max_new_tokens=tokens)


def _passes(verdict: Verdict) -> None:
    assert [check for check in verdict.checks if not check.passed] == []
    assert verdict.first_divergence is None


def _share(each: LayoutRun) -> list[int]:
    return [rank.parameters for rank in each.ranks]


def test_experts_under_tensor_expert_and_pipeline_parallelism(tmp_path: Path) -> None:
    root = tiny.experts(tmp_path / "model")
    record = _run(root, tmp_path, "tp=2", "tp=2,ep=2", "pp=2")
    tensor, expert, pipeline = record.runs
    # Embedding and head 300 * 64 each; a layer: attention 4 * 16 * 64 * 2 + 2 * 16 * 64 * 2, norms 2 * 64 + 2 * 16,
    # router 8 * 64, experts 8 * 3 * 32 * 64. Norms and the router are whole on each tp rank.
    layer_split, layer_whole = 4 * 16 * 64 * 2 + 2 * 16 * 64 * 2 + 8 * 3 * 32 * 64, 2 * 64 + 2 * 16 + 8 * 64
    each = (2 * 300 * 64 + 4 * layer_split) // 2 + 4 * layer_whole + 64
    assert _share(tensor) == _share(expert) == [each, each]
    half = 300 * 64 + 2 * (layer_split + layer_whole)
    assert _share(pipeline) == [half, half + 64]
    assert [rank.layers for rank in pipeline.ranks] == [(0, 1), (2, 3)]
    for done in record.runs:
        assert done.repeat_identical and [rank.exit_code for rank in done.ranks] == [0, 0]
        assert [output.prompt for output in done.outputs] == list(record.prompts)
        assert 0 < done.ranks[0].base_private_bytes < done.ranks[0].peak_private_bytes
    verdict = check(tiny.release(root), record, folder=tmp_path)
    _passes(verdict)
    names = {each.name for each in verdict.checks}
    for layout in ("tp=2", "tp=2 ep=2", "pp=2"):
        places = [error.place for error in verdict.layers if error.layout == layout]
        assert places == ["embedding", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "logits"]
        assert f"{layout}: gradients, largest relative L2 of a parameter" in names


def test_replicas_and_padding(tmp_path: Path) -> None:
    """Prompts of different lengths are padded: a stage that masks the padding wrongly writes something else."""
    root = tiny.dense(tmp_path / "model", tie_word_embeddings=True)
    record = _run(root, tmp_path, "dp=2", "dp=2,pp=2", tokens=24)
    assert gradient_rows(tuple(each.layout for each in record.runs)) == 2
    verdict = check(tiny.release(root), record, folder=tmp_path)
    _passes(verdict)
    assert sum("gradients" in each.name for each in verdict.checks) == 2
    replicas, both = record.runs
    assert [output.tokens for output in replicas.outputs] == [output.tokens for output in both.outputs]
    assert len(both.ranks) == 4 and both.ranks[0].layers == both.ranks[2].layers == (0, 1)


def test_a_corrupted_weight_is_found_in_its_layer(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    clean = tiny.dense(tmp_path / "clean")
    damaged = tmp_path / "damaged"
    shutil.copytree(clean, damaged)
    name = "model.layers.2.mlp.down_proj.weight"
    path = next(path for path in damaged.glob("*.safetensors") if name in load_file(path))
    tensors = load_file(path)
    tensors[name] = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    save_file(tensors, path, metadata={"format": "pt"})
    record = _run(damaged, tmp_path, "pp=2")
    verdict = check(tiny.release(damaged), record, folder=tmp_path, reference=tiny.release(clean))
    assert not verdict.passed
    assert verdict.first_divergence is not None
    assert (verdict.first_divergence.place, verdict.first_divergence.layer) == ("layers.2", 2)
    assert verdict.first_divergence.layout == "pp=2 in f32"
    assert verdict.first_divergence.before < 1e-5 and verdict.first_divergence.relative_l2 > 0.05
    failed = {check.name for check in verdict.checks if not check.passed}
    assert "pp=2: logits output, relative L2" in failed and "pp=2: layers.1 addition, relative L2" not in failed
    assert "pp=2: gradients, largest relative L2 of a parameter" in failed


def test_three_ranks_of_the_real_model(real_model: Path, tmp_path: Path) -> None:
    """9 heads and 3 KV heads: three ranks hold 3 and 1 of them."""
    record = _run(real_model, tmp_path, "tp=3", tokens=8)
    # 134,515,008 parameters, of which 61 norms of 576 are whole on each rank.
    assert _share(record.runs[0]) == [(134_515_008 - 61 * 576) // 3 + 61 * 576] * 3
    _passes(check(tiny.release(real_model), record, folder=tmp_path))
