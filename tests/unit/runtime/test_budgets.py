"""What a plan keeps outside of the devices becomes what each rank's weights may take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.support import plan_models, tiny

from dayzero.runtime.budgets import budgets
from dayzero.schema import Budget, Layout, Offload

MOVED = Offload(shares={"experts": 0.5}, host_bytes=300, disk_bytes=100, needed_bytes=40, bound_s=1e-3)


def placed(layout: str, *weights: int, offload: Offload | None = MOVED) -> SimpleNamespace:
    return SimpleNamespace(layout=Layout.parse(layout), offload=offload,
                           bytes_per_stage=tuple({"weights": each, "kv_cache": 7} for each in weights))


def test_each_rank_gets_what_is_left_on_a_device_of_its_stage() -> None:
    """Ranks of a replica are numbered stage by stage."""
    hosts = [each.host for each in budgets(placed("tp=2,pp=2,dp=2", 10, 20))]
    assert hosts == [10, 10, 20, 20] * 2
    assert all(each.weights and each.device is None for each in budgets(placed("tp=2,pp=2,dp=2", 10, 20)))


def test_a_device_keeps_them_and_the_host_what_the_plan_moves_there() -> None:
    assert budgets(placed("pp=2", 10, 20), device=True) == tuple(
        Budget(device=left, host=300, weights=True) for left in (10, 20))


def test_a_plan_that_moves_nothing_limits_nothing() -> None:
    assert budgets(placed("tp=2", 10, offload=None)) == ()


def test_a_real_plan_on_a_model_of_its_sizes(real_model: Path) -> None:
    """135 M parameters in bf16 are 269 MB, and the device has 250 MB: the runtime keeps what the plan leaves there."""
    torch = pytest.importorskip("torch")
    from dayzero.runtime.building import blueprint
    from dayzero.runtime.loading import Checkpoint
    from dayzero.runtime.tiers import Tiers
    from dayzero.stages.plan import plan
    from dayzero.stages.read import read

    device = plan_models.device(memory_bytes=250 * 10**6, host_bandwidth=1e10)
    there = plan_models.target(1, on=device, concurrency=1, input_tokens=32, output_tokens=8)
    best = plan(read(str(real_model)).model, there).best
    assert best is not None and best.offload is not None and best.offload.shares.keys() == {"weights"}
    (budget,) = budgets(best)
    assert budget.host == best.bytes_per_stage[0]["weights"]
    model = blueprint(real_model, "bf16").model
    with Checkpoint(real_model, model) as checkpoint:
        tiers = Tiers(model, checkpoint, {}, budget, dtype=torch.bfloat16)
        kept = sum(tiers.kept.values())
        whole, layer = sum(checkpoint.bytes(name) for name in checkpoint.names if name != "lm_head.weight"), 7_100_000
        assert budget.host - 2 * layer < kept <= budget.host < whole
        assert (whole - kept) / whole == pytest.approx(best.offload.shares["weights"], abs=0.06)
        tiers.close()


def test_experts_leave_first(tmp_path: Path) -> None:
    """As in the plan: with room for all but half of the experts, everything else stays."""
    torch = pytest.importorskip("torch")
    from dayzero.runtime.building import blueprint
    from dayzero.runtime.loading import Checkpoint
    from dayzero.runtime.tiers import Tiers

    root = tiny.experts(tmp_path / "model", moe_intermediate_size=512)
    model = blueprint(root, "bf16").model
    sizes = {name: 2 * each.numel() for name, each in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    (budget,) = budgets(placed("tp=1", sum(sizes.values()) - experts // 2))
    with Checkpoint(root, model) as checkpoint:
        tiers = Tiers(model, checkpoint, {}, budget, dtype=torch.bfloat16)
        kept = tiers.kept
        tiers.close()
    assert 0.4 * experts < kept["experts"] <= 0.5 * experts
    assert "staging" not in kept and kept["layers"] > 0 and kept["head"] > 0


def test_less_than_the_least_is_raised_to_it(tmp_path: Path) -> None:
    """A plan may move all weights: the runtime needs room for what is being computed with."""
    torch = pytest.importorskip("torch")
    from dayzero.runtime.building import blueprint
    from dayzero.runtime.loading import Checkpoint
    from dayzero.runtime.tiers import Tiers

    root = tiny.dense(tmp_path / "model")
    model = blueprint(root, "bf16").model
    moved = msgspec.structs.replace(MOVED, shares={"weights": 1.0})
    with Checkpoint(root, model) as checkpoint:
        tiers = Tiers(model, checkpoint, {}, budgets(placed("tp=1", 0, offload=moved))[0], dtype=torch.bfloat16)
        assert set(tiers.kept) <= {"staging", "head", "table"}  # no layer, no expert
        tiers.close()
