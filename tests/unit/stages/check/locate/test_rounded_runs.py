"""Runs with quantised weights against the release: noise of quantisation, and what is wrong beside it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support import tiny

from dayzero.runtime.recording import record
from dayzero.runtime.substitution.causes.roundings import Rounding, kinds_of, roundings
from dayzero.runtime.substitution.reference import reference
from dayzero.schema.located import Location
from dayzero.stages.check.locate import locate, words

gguf = pytest.importorskip("gguf")
TOKENS = [[*range(40, 66)]]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: Any) -> Any:
    return tiny.dense(tmp_path_factory.mktemp("dense") / "model", num_hidden_layers=2)


def through(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the `gguf` package makes of a matrix."""
    form = gguf.GGMLQuantizationType[kind]
    return lambda weight: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(
        weight.float().numpy(), form), form)).to(weight.dtype)


def located(root: Path, folder: Path, change: Callable[[Any], None], *, dtype: str = "bf16") -> Location:
    with reference(root, dtype) as made, torch.no_grad():
        change(made.watched)
        with record(made.watched, folder):
            for tokens in TOKENS:
                made.forward(torch.tensor([tokens]))
    return locate(root, folder)


def rounded(model: Any, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.copy_(of(parameter))


def told(location: Location) -> str:
    text = io.StringIO()
    Console(file=text, width=400).print(words.overview(location))
    return text.getvalue()


@pytest.mark.parametrize(("kind", "how"), [("Q4_0", "4 bits in blocks of 32"), ("Q8_0", "8 bits in blocks of 32")])
def test_a_quantised_run_is_described_as_that_alone(dense: Path, tmp_path: Path, kind: str, how: str) -> None:
    location = located(dense, tmp_path / "dump", lambda model: rounded(model, through(kind)))
    assert not location.passed
    assert not location.guilty, [(each.name, each.what, each.error, each.tolerance) for each in location.guilty]
    found, = location.rounded
    assert found.how == how and len(found.modules) == found.of == 16
    assert 0.001 < found.smallest < found.largest < 0.2
    said, contract = told(location), words.to_contract(location)
    assert "16 of 16 modules with matrices have the reference's weights rounded to" in said and how in said
    assert "noise of quantised weights" in said and "nothing is wrong beside that" in said
    assert not contract["passed"] and contract["rounded"][0]["how"] == how
    assert contract["beside_rounding"].startswith("nothing is wrong beside that")


def test_a_fault_on_top_is_named_as_more(dense: Path, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        rounded(model, through("Q4_0"))
        feed = model.model.layers[1].mlp
        gate, up = feed.gate_proj.weight.clone(), feed.up_proj.weight.clone()
        feed.gate_proj.weight.copy_(up)
        feed.up_proj.weight.copy_(gate)
    location = located(dense, tmp_path / "dump", change)
    assert {each.module for each in location.guilty} == {f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up")}
    assert location.rounded[0].how == "4 bits in blocks of 32" and len(location.rounded[0].modules) == 14
    assert location.first is not None and location.first.cause is not None
    assert "weight of model.layers.1.mlp.up_proj in the place of" in location.first.cause.words
    assert "beside that, and more than noise of quantised weights: model.layers.1.mlp.gate_proj" in told(location)


def test_a_fault_of_code_on_top(dense: Path, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        rounded(model, through("Q4_0"))
        model.model.layers[0].self_attn.scaling *= 2
    location = located(dense, tmp_path / "dump", change)
    assert {each.module for each in location.guilty} == {"model.layers.0.self_attn"} and location.rounded
    assert location.first is not None and "scaling" in location.first.cause.name


def test_one_rounded_matrix_is_a_fault_of_its_own(dense: Path, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        weight = model.model.layers[1].mlp.up_proj.weight
        weight.copy_(through("Q4_0")(weight))
    location = located(dense, tmp_path / "dump", change)
    assert not location.rounded and {each.module for each in location.guilty} == {"model.layers.1.mlp.up_proj"}


def test_rounding_that_cannot_be_computed_again(dense: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def noise(weight: torch.Tensor) -> torch.Tensor:
        return weight * (1 + 0.2 * (torch.rand(weight.shape, generator=generator) - 0.5)).to(weight.dtype)
    location = located(dense, tmp_path / "dump", lambda model: rounded(model, noise))
    assert location.guilty and [each.how for each in location.rounded] == [""]
    assert "are off alike" in told(location) and "quantised release as reference" in told(location)


@pytest.mark.parametrize(("kind", "levels", "rule"), [
    ("Q4_0", "4", "extreme"), ("Q4_1", "4", "range"), ("Q5_0", "5", "extreme"), ("Q8_0", "8", "largest")])
def test_ways_to_round_are_those_of_the_package(kind: str, levels: str, rule: str) -> None:
    weight = torch.from_numpy((np.random.default_rng(0).standard_normal((8, 128)) * 0.02).astype(np.float32))
    wanted = through(kind)(weight)
    way = next(way for way in roundings() if (way.levels, way.rule, way.block) == (levels, rule, (1, 32)))
    left = min(float((each.of(weight) - wanted).norm() / (weight - wanted).norm()) for each in kinds_of(way))
    assert left < 0.02, "but for ties, and scales that are kept otherwise"


def test_blocks_that_do_not_divide_a_matrix() -> None:
    weight = torch.randn(130, 200, generator=torch.Generator().manual_seed(1))
    made = Rounding("e4m3", "largest", (128, 128)).of(weight)
    assert made.shape == weight.shape and 0.005 < float((made - weight).norm() / weight.norm()) < 0.04
    scale = weight[128:, 128:].abs().max() / 448
    assert torch.equal(made[128:, 128:], (weight[128:, 128:] / scale).to(torch.float8_e4m3fn).float() * scale)
