"""A few of the planted faults and of the correct runs, judged; and whether the suite plants what it says it does.

`benchmarks/bench_faults.py` judges all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.faults.cases import FAULTS
from tests.faults.correct import Correct, correct_runs
from tests.faults.fault import Fault
from tests.faults.judges import by_constants, by_dayzero
from tests.faults.lab import Lab, effect
from tests.faults.models import CONFIGS, load
from tests.faults.work import Way, distance, run

JUDGED = {
    "llama": ("square weight transposed", "norm epsilon"),
    "deepseek_v3": ("routed scaling factor twice", "router bias in bf16"),
    "qwen3_next": ("state kept for the next sequence",),
    "gpt_oss": ("window one token short",),
}
"""Of each architecture those that are judged here."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Lab(tmp_path_factory.mktemp("lab"))
    torch.set_num_threads(threads)


def fault(kind: str, name: str) -> Fault:
    return next(each for each in FAULTS if (each.kind, each.name) == (kind, name))


def test_names_are_unique_and_enough() -> None:
    names = [(each.kind, each.name) for each in FAULTS]
    assert len(set(names)) == len(names) >= 48
    assert {each.kind for each in FAULTS} == set(CONFIGS)
    assert len(list(correct_runs())) >= 200


@pytest.mark.parametrize("which", range(0, len(FAULTS), 10))
def test_fault_changes_logits(lab: Lab, which: int) -> None:
    size = effect(lab, FAULTS[which])
    assert size is None or size > 1e-5, FAULTS[which].name


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_correct_ways_are_right(lab: Lab, kind: str) -> None:
    wanted = run(load(lab.release(kind)))
    for each in correct_runs():
        if each.kind == kind and each.precision == "f32":
            model = load(lab.release(kind), attention=each.attention, experts=each.experts)
            assert distance(wanted, run(model, each.way)) < 1e-5, each.name


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in JUDGED.items() for name in names])
def test_fault_is_caught_and_located(lab: Lab, kind: str, name: str) -> None:
    planted = fault(kind, name)
    said = by_dayzero(lab.release(kind), lab.reference(kind), lab.faulty(planted), lab.noise(kind, planted.precision))
    assert said.caught(), said
    assert said.located(planted), said


@pytest.mark.slow
@pytest.mark.parametrize("correct", [
    Correct("alone", "deepseek_v3"), Correct("fused", "llama", "f32", attention="sdpa"),
    Correct("batch 2, padded left", "glm_moe_dsa", way=Way(batch=2))],
    ids=lambda each: f"{each.kind}-{each.name}")  # fmt: skip
def test_correct_run_is_not_called_wrong(lab: Lab, correct: Correct) -> None:
    said = by_dayzero(lab.release(correct.kind), lab.reference(correct.kind), lab.right(correct),
                      lab.noise(correct.kind, correct.precision))
    assert not said.alarm, said
    assert "compare_error" not in said.told and "locate_error" not in said.told


def test_constant_limit_calls_a_correct_run_wrong(lab: Lab) -> None:
    """Which is why tolerances are measured: routing flips of a correct run in bf16 move logits by more."""
    said = by_constants(lab.reference("deepseek_v3"), lab.right(Correct("alone", "deepseek_v3")))
    assert said["relative"].alarm and said["relative, logits"].alarm


def test_release_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, other = Lab(tmp_path / "a").release("llama"), Lab(tmp_path / "b").release("llama")
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
