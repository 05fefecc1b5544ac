"""The main job on a real model: two ranks on this machine, planned, run, proven, reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayzero.job import Options
from dayzero.pipeline import adapt, failed
from dayzero.schema import Layout, Results
from dayzero.stages.report.prediction import compare


@pytest.fixture(scope="module")
def outcome(real_model: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    runs = tmp_path_factory.mktemp("real") / "runs"
    return adapt(str(real_model), root / "examples/targets/local.toml", runs=runs, options=Options(max_new_tokens=8))


@pytest.mark.slow
def test_it_is_adapted(outcome: Results) -> None:
    assert failed(outcome) == []
    assert {stage.name: stage.status for stage in outcome.stages if stage.status != "done"} == {}
    assert "dequantised from GGUF Q4_1" in outcome.release.model.provenance


@pytest.mark.slow
def test_what_is_legal_on_two_ranks(outcome: Results) -> None:
    """9 heads and 3 KV heads: tp=2 cuts neither."""
    assert {finding.rule for finding in outcome.findings.findings} == {"shard-heads", "shard-kv-heads"}
    assert {(rejected.layout.text, rejected.rule) for rejected in outcome.plan.rejected} == {
        ("tp=2", "shard-heads"), ("tp=2", "shard-kv-heads")}
    assert {run.layout for run in outcome.record.runs} == {Layout(dp=2), Layout(pp=2)}


@pytest.mark.slow
def test_each_rank_holds_its_shard(outcome: Results) -> None:
    """Two stages of 15 layers: 15 x 3,540,096 parameters and 49152 x 576 of the embedding, tied and so on both, and
    576 of the last norm."""
    stages = next(run for run in outcome.record.runs if run.layout.pp == 2).ranks
    assert [rank.layers for rank in stages] == [tuple(range(15)), tuple(range(15, 30))]
    assert [rank.parameters for rank in stages] == [81_412_992, 81_412_992 + 576]
    replicas = next(run for run in outcome.record.runs if run.layout.dp == 2).ranks
    assert [rank.parameters for rank in replicas] == [134_515_008] * 2


@pytest.mark.slow
def test_every_layer_is_compared_and_the_tokens_too(outcome: Results) -> None:
    for layout in ("dp=2", "pp=2"):
        places = [error.place for error in outcome.verdict.layers if error.layout == layout]
        assert places == ["embedding", *(f"layers.{number}" for number in range(30)), "norm", "logits"]
        for words in ("tokens", "gradients", "same seed"):
            assert any(check.name.startswith(layout) and words in check.name for check in outcome.verdict.checks), words


@pytest.mark.slow
def test_peak_memory_is_predicted(outcome: Results) -> None:
    ratios = [each.ratio for each in compare(outcome) if "memory" in each.name]
    assert len(ratios) == 4
    assert all(1 / 1.15 <= ratio <= 1.15 for ratio in ratios), ratios
