"""Golden dumps that several processes write together, put together again and compared with one process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.tiny import dense, experts

from dayzero.runtime.golden import open_dump
from dayzero.schema import Budget, Layout
from dayzero.schema.golden import PADDING
from dayzero.stages.check.recording import Asked, record_release
from dayzero.stages.read import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOKENS = ((5, 6, 7, 8, 9, 10, 11), (20, 21, 22, 23))
ROUNDING = 2e-5
"""Of f32 sums in another order, through four layers."""


def whole(folder: Path) -> dict[tuple[Any, ...], np.ndarray]:
    """{(module, what, slot, row or nothing): values} of all ranks together; without weights, of which each rank keeps
    rows of its own part."""
    made: dict[tuple[Any, ...], dict[tuple[int, ...], np.ndarray]] = {}
    with open_dump(folder) as dump:
        for item in dump.items:
            dump.verify(item)
            if item.entry.what == "parameter":
                continue
            entry, values = item.entry, dump.read(item)
            rows = [tuple(row) for row in dump.rows(item).tolist()]
            keys = [(entry.name, entry.what, entry.slot, row) for row in rows] or [(entry.name, entry.what, entry.slot)]
            term = tuple(item.dump.place[degree] for degree in entry.summed)
            for key, each in zip(keys, values if rows else [values], strict=True):
                shape, index = list(each.shape), [slice(None)] * each.ndim
                for held in entry.held:
                    axis = held.axis - bool(rows)
                    shape[axis] = held.size
                    index[axis] = np.concatenate([np.arange(*one) for one in held.ranges])
                into = made.setdefault(key, {}).setdefault(term, np.full(shape, np.nan))
                into[tuple(index)] = each
    return {key: np.asarray(sum(terms.values())) for key, terms in made.items()}


def differing(folder: Path, reference: Path) -> list[Any]:
    """Places that differ by more than rounding from the largest value of their tensor, and those that are missing."""
    ours, theirs = whole(folder), whole(reference)
    largest: dict[tuple[Any, ...], float] = {}
    for key, values in theirs.items():
        largest[key[:3]] = max(largest.get(key[:3], 0), float(np.abs(values).max(initial=0)))
    return [key for key, values in theirs.items()
            if key not in ours or not np.abs(ours[key] - values).max(initial=0) <= ROUNDING * largest[key[:3]]]


@pytest.mark.parametrize("layout", ["tp=2,pp=2", "dp=2"])
def test_outputs_and_gradients_of_a_layout(tmp_path: Path, layout: str) -> None:
    release = read(str(dense(tmp_path / "release", dtype="float32")))
    for name, degrees in (("one", Layout()), ("many", Layout.parse(layout))):
        record_release(release, TOKENS, tmp_path / name, Asked(layout=degrees, dtype="f32", gradients="outputs"))
    assert {key[:3] for key in differing(tmp_path / "many", tmp_path / "one")} <= {("", "gradient", "logits")}, (
        "stages have no gradient of the whole model's output; all else is there")
    with open_dump(tmp_path / "many") as dump:
        assert len(dump.ranks) == Layout.parse(layout).world_size
        if "tp" in layout:
            assert any(item.entry.held for item in dump.items), "a rank keeps its own part"


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2", "dp=2"])
def test_through_the_serving_engine(tmp_path: Path, layout: str) -> None:
    release = read(str(dense(tmp_path / "release", dtype="float32")))
    record_release(release, TOKENS, tmp_path / "one", Asked(dtype="f32"))
    record_release(release, TOKENS, tmp_path / "many", Asked(
        layout=Layout.parse(layout), dtype="f32", paged=4, decode=2))
    assert {key[0] for key in differing(tmp_path / "many", tmp_path / "one")} <= {"", "model", "lm_head", "model.norm"}, (
        "an engine asks for the logits of the last tokens; all else is there")
    with open_dump(tmp_path / "many") as dump:
        passes = [each for found in dump.passes.values() for each in found.values()]
        last = [item for item in dump.items if item.entry.name == "lm_head" and item.entry.what == "output"]
    calls = [[(rows.sequence, rows.first, rows.count) for rows in each.rows] for each in passes]
    assert [(0, 0, 4)] in calls and any(len({row[0] for row in call}) > 1 or layout == "dp=2" for call in calls)
    assert last and max(rows.count for call in passes for rows in call.rows) <= 4


def test_prompts_of_other_lengths_in_one_call_of_the_serving_engine(tmp_path: Path) -> None:
    release = read(str(dense(tmp_path / "release", dtype="float32")))
    record_release(release, TOKENS, tmp_path / "one", Asked(dtype="f32"))
    record_release(release, TOKENS, tmp_path / "many", Asked(dtype="f32", paged=64, decode=2))
    assert {key[0] for key in differing(tmp_path / "many", tmp_path / "one")} <= {"", "model", "lm_head", "model.norm"}
    with open_dump(tmp_path / "many") as dump:
        calls = [{rows.sequence for rows in each.rows} for found in dump.passes.values() for each in found.values()]
    assert {PADDING, *range(len(TOKENS))} in calls


def test_weights_that_stay_in_the_files(tmp_path: Path) -> None:
    release = read(str(dense(tmp_path / "release", dtype="float32")))
    record_release(release, TOKENS, tmp_path / "one", Asked(dtype="f32"))
    record_release(release, TOKENS, tmp_path / "low", Asked(dtype="f32", budgets=(Budget(host=200_000, weights=True),)))
    assert not differing(tmp_path / "low", tmp_path / "one")


@pytest.mark.parametrize("layout", ["tp=2,ep=2", "dp=2,ep=2"])
def test_experts_that_are_dealt_out(tmp_path: Path, layout: str) -> None:
    release = read(str(experts(tmp_path / "release", dtype="float32")))
    for name, degrees in (("one", Layout()), ("many", Layout.parse(layout))):
        record_release(release, TOKENS, tmp_path / name, Asked(layout=degrees, dtype="f32", decode=2))
    assert not differing(tmp_path / "many", tmp_path / "one")
    with open_dump(tmp_path / "many") as dump:
        routers = {item.entry.name for item in dump.items if item.entry.what == "router"}
    assert {f"model.layers.{layer}.mlp.gate" for layer in range(4)} <= routers


SCRIPT = """
import sys, torch, dayzero
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def main(out, rank):
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    given = torch.arange(24.0).view(3, 8)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = parallelize_module(made(), mesh, {
        "0": ColwiseParallel(use_local_output=False),
        "2": RowwiseParallel(output_layouts=Partial(), use_local_output=False)})
    with torch.no_grad(), dayzero.record(model, f"{out}/tp", modules="leaves"):
        model(given)
    model = fully_shard(made(), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    with dayzero.record(model, f"{out}/fsdp", modules="leaves", gradients="parameters"):
        model(given + rank).square().mean().backward()
    dist.destroy_process_group()

main(sys.argv[1], int(sys.argv[2]))
"""


def test_a_script_with_parts_of_torchs_own(tmp_path: Path) -> None:
    """DTensors of tensor parallelism, a sum that is not taken yet, and gradients that replicas share."""
    import torch
    from torch import nn

    (tmp_path / "script.py").write_text(SCRIPT)
    ranks = [subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(rank)],
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), errors
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    given = torch.arange(24.0).view(3, 8)
    with torch.no_grad():
        first, last = model[0](given).numpy(), model(given).numpy()
    made = whole(tmp_path / "tp")
    np.testing.assert_allclose(made["0", "output", "0"], first, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made["2", "output", "0"], last, rtol=1e-5, atol=1e-5)
    with open_dump(tmp_path / "tp") as dump:
        assert dump.ranks[0].layout == Layout(tp=2)
        assert {item.entry.summed for item in dump.items if item.entry.name == "2" and item.entry.what == "output"} == {
            ("tp",)}
    ((model(given).square().mean() + model(given + 1).square().mean()) / 2).backward()
    made = whole(tmp_path / "fsdp")
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(made[name, "gradient", ""], parameter.grad.numpy(), rtol=1e-4, atol=1e-4)
    with open_dump(tmp_path / "fsdp") as dump:
        assert dump.ranks[0].layout == Layout(dp=2)
