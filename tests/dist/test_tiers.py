"""Weights in tiers on several ranks: the tokens of one process in memory, budgets that every rank keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import guest, twins

from dayzero.schema import Budget, Layout, TierRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LAYOUTS = ("tp=2", "pp=2", "tp=2,ep=2", "tp=2,pp=2", "dp=2")
OWN = ("tp=2", "tp=2,ep=2", "dp=2,ep=2", "tp=2,ep=2,pp=2")
MEGABYTE = 1_000_000


def ran(root: Path, out: Path, dtype: str, budget: Budget, layouts: tuple[str, ...], *options: str
        ) -> dict[str, list[dict[str, Any]]]:
    """What each rank tells, by layout."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
                   "PYTORCH_JIT": "0", "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "tests.dist.tiers_ranks", str(root), str(out), dtype,
                           msgspec.json.encode(budget).decode(), *options, *layouts],
                          env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert out.exists(), done.stderr[-2000:]
    made = {each["layout"]: each for each in map(json.loads, out.read_text().splitlines())}
    assert not [each for each in made.values() if "error" in each], made
    return {layout: each["ranks"] for layout, each in made.items()}


def records(ranks: list[dict[str, Any]]) -> list[TierRecord]:
    return [msgspec.convert(each["record"], TierRecord) for each in ranks]


@cache
def experts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """A mixture of experts, with 2 MB for the weights of each rank, or the least that works."""
    twins.of_card("qwen3-235b-a22b", folder / "experts")
    return ran(folder / "experts", folder / "experts.jsonl", "f32", Budget(host=2 * MEGABYTE, weights=True), LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_are_those_of_one_process_in_memory(layout: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks = experts(tmp_path_factory.getbasetemp())[layout]
    assert len(ranks) == Layout.parse(layout).world_size
    assert all(each["tokens"] and each["error"] < 1e-5 for each in ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_tells_what_its_own_weights_cost(layout: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks = experts(tmp_path_factory.getbasetemp())[layout]
    for each, record in zip(ranks, records(ranks), strict=True):
        assert record.slots == 2 < record.experts and record.passes >= 8
        assert sum(record.kept.values()) < 0.7 * 4 * each["elements"]  # f32; next to nothing is kept
        assert 0 < record.fresh_bytes <= record.needed_bytes and record.read_bytes > 0
        assert record.bound_s is not None and record.bound_s > 0
        assert 0 <= record.stall_s < record.seconds
    needed = {layout: sum(record.needed_bytes / record.passes for record in records(ranks))
              for layout, ranks in experts(tmp_path_factory.getbasetemp()).items()}
    assert needed["tp=2"] == pytest.approx(needed["dp=2"] / 2, rel=0.15)  # replicas each need all of it


def test_a_release_with_code_of_its_own(tmp_path: Path) -> None:
    """A list of experts that its code calls one by one, some of them on other ranks or cut."""
    root = guest.write(tmp_path / "own")
    made = ran(root, tmp_path / "out", "f32", Budget(host=0, weights=True), OWN, "--own")
    for layout, ranks in made.items():
        assert all(each["tokens"] and each["error"] < 1e-5 for each in ranks), layout
        for record in records(ranks):
            assert 2 <= record.slots < record.experts / 2 and 0 < record.fresh_bytes <= record.needed_bytes, layout


def test_quantised_weights_stay_quantised_on_ranks_that_share_them(tmp_path: Path) -> None:
    """Each rank keeps its own columns and rows of what is stored: about half of the files."""
    twins.of_card("gpt-oss-20b", tmp_path / "twin")
    made = ran(tmp_path / "twin", tmp_path / "out", "f32", Budget(keep="stored"), ("tp=2,pp=2",))
    files = sum(path.stat().st_size for path in (tmp_path / "twin").glob("*.safetensors"))
    for layout, ranks in made.items():
        assert all(each["tokens"] and each["error"] < 1e-5 for each in ranks), layout
        shares = [record.kept["stored"] for record in records(ranks)]
        assert all(share < 0.6 * files / (len(ranks) // 2) for share in shares), (layout, shares, files)
        assert all(record.stored_bytes > 0.8 * record.fresh_bytes for record in records(ranks))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_private_memory_of_every_rank_stays_in_the_budget(real_model: Path, tmp_path: Path) -> None:
    """540 MB of weights in f32: each rank may take 230 MB beside its process, 134 of which are for everything else."""
    made = ran(real_model, tmp_path / "out", "f32", Budget(host=230 * MEGABYTE), ("tp=2",))
    for layout, ranks in made.items():
        for each, record in zip(ranks, records(ranks), strict=True):
            assert each["tokens"] and each["error"] < 1e-5, layout
            assert each["over"] <= 0, layout
            assert 60 * MEGABYTE < sum(record.kept.values()) < 4 * each["elements"] - 100 * MEGABYTE
