"""Values of small tensors: a release in order, and copies with one thing wrong each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.shipped_code import engine
from tests.support.tiny_release import CONFIG
from tests.support.valued import Tensors, bf16, f32, write

from dayzero.schema import Finding
from dayzero.stages.preflight import Case
from dayzero.stages.preflight.values import rules as values
from dayzero.stages.read import read

EXPERTS = 256
BIAS = "model.layers.{}.mlp.gate.e_score_correction_bias"
NORM = "model.layers.{}.input_layernorm.weight"
LAYERS = 12
MIXED: dict[str, object] = {**CONFIG, "num_experts": EXPERTS, "num_experts_per_tok": 8, "moe_intermediate_size": 32}


def case(folder: Path, tensors: Tensors, asked: bool = True, **facts: object) -> Case:
    return Case(read(write(folder, tensors, MIXED), metadata_only=True), engine(**facts), asked)


def told(found: object) -> list[tuple[str, str]]:
    return sorted((one.severity, one.subject) for one in found)  # type: ignore[attr-defined]


def collapsing(values_wanted: int = 238) -> np.ndarray:
    """A bias around 6 with tiny differences: 238 different values of 256, about 8 in bf16 (spacing 2**-5 there)."""
    return (6 + np.arange(EXPERTS) % values_wanted / 1000).astype(np.float32)


def router(layers: int = LAYERS, values_of: np.ndarray | None = None) -> Tensors:
    held = collapsing() if values_of is None else values_of
    return {BIAS.format(layer): ("F32", (len(held),), f32(held)) for layer in range(layers)}


def norms(**odd: object) -> Tensors:
    """Norm weights around 1 in 12 layers; `odd` replaces those of layer 5."""
    rng = np.random.default_rng(0)
    weights = {layer: rng.normal(1, 0.1, 64) for layer in range(LAYERS)}
    weights[5] = odd.get("layer5", weights[5])  # type: ignore[assignment]
    return {NORM.format(layer): ("BF16", (64,), bf16(weight)) for layer, weight in weights.items()}


# pull request 31213 of an inference engine: 238 different values of a router's bias become about 8 in bf16
@pytest.mark.parametrize("name", ["e_score_correction_bias", "gate.e_score_correction_bias",
                                  "*.e_score_correction_bias", BIAS.format("{L}"), BIAS.format(0)])
def test_a_bias_that_collapses(tmp_path: Path, name: str) -> None:
    one: Finding
    one, = values.bias_precision(case(tmp_path, router(1), asked=False, param_dtype={name: "bf16"}))
    assert (one.severity, one.subject) == ("error", BIAS.format(0))
    assert one.facts["distinct_before"] == 238
    assert one.facts["distinct_after"] == 9  # 6.0 to 6.237 in steps of 1/32, rounded: 0 to 8 steps


def test_a_bias_that_loses_little_or_nothing(tmp_path: Path) -> None:
    facts = {"param_dtype": {"e_score_correction_bias": "bfloat16"}}
    exact = np.linspace(-0.5, 0.5, 9)
    assert told(values.bias_precision(case(tmp_path / "a", router(1, exact), False, **facts))) == []
    little = np.concatenate([np.arange(20) / 16, [1 + 2**-20]])
    assert told(values.bias_precision(case(tmp_path / "b", router(1, little), False, **facts))) == [
        ("warning", BIAS.format(0))]


@pytest.mark.parametrize("facts", [{}, {"param_dtype": {"other_bias": "bf16"}},
                                   {"param_dtype": {"correction_bias": "bf16"}},
                                   {"param_dtype": {"e_score_correction_bias": "f32"}},
                                   {"param_dtype": {"e_score_correction_bias": "int8"}}])
def test_a_bias_that_is_held_as_stored_or_that_nothing_is_said_of(tmp_path: Path, facts: dict[str, object]) -> None:
    assert told(values.bias_precision(case(tmp_path, router(1), False, **facts))) == []


def test_a_bias_without_data(tmp_path: Path) -> None:
    tensors = {name: (dtype, shape, None) for name, (dtype, shape, _) in router(3).items()}
    tensors["model.embed_tokens.weight"] = ("BF16", (128, 64 * 64), None)
    facts = {"param_dtype": {"e_score_correction_bias": "bf16"}}
    assert told(values.bias_precision(case(tmp_path, tensors, False, **facts))) == []


def test_many_alike_are_one_finding(tmp_path: Path) -> None:
    one, = values.bias_precision(case(tmp_path, router(), False, param_dtype={"e_score_correction_bias": "bf16"}))
    assert (one.subject, one.facts["count"]) == ("model.layers.{L}.mlp.gate.e_score_correction_bias", LAYERS)


def test_a_value_too_large_for_the_dtype(tmp_path: Path) -> None:
    big = np.array([1.0, 70000.0])
    one, = values.bias_precision(case(tmp_path, router(1, big), False, param_dtype={"e_score_correction_bias": "f16"}))
    assert (one.severity, "become infinite" in one.message) == ("error", True)


def test_a_bias_that_must_not_be_cast_is_said_on_request(tmp_path: Path) -> None:
    assert told(values.bias_precision(case(tmp_path, router(1) | norms()))) == [("info", BIAS.format(0))]


def test_a_release_in_order_has_no_findings(tmp_path: Path) -> None:
    seen = case(tmp_path, norms())
    assert [told(rule(seen)) for rule in (values.values_not_finite, values.values_outlier, values.values_padding)] == [
        [], [], []]
    assert next(iter(values.values_read(seen))).facts["read"] == LAYERS


def test_nothing_is_read_unless_asked_for(tmp_path: Path) -> None:
    seen = case(tmp_path, norms(layer5=np.full(64, np.nan)), asked=False)
    assert told(values.values_not_finite(seen)) == told(values.values_read(seen)) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(tmp_path: Path, bad: float) -> None:
    weight = np.ones(64)
    weight[7] = bad
    one, = values.values_not_finite(case(tmp_path, norms(layer5=weight)))
    assert (one.severity, one.subject, one.facts) == ("error", NORM.format(5), {"values": 1})


def test_a_power_of_two_scale_that_is_nan(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.0.up_proj.weight_scale"
    seen = case(tmp_path, {name: ("F8_E8M0", (4, 2), bytes([127] * 7 + [255]))})
    assert told(values.values_not_finite(seen)) == [("error", name)]


@pytest.mark.parametrize("weight", [
    np.where(np.arange(64) == 3, 2.0**40, 1), np.ones(64) * 1e-6, np.where(np.arange(64) < 20, 1, 0), np.zeros(64)])
def test_outliers(tmp_path: Path, weight: np.ndarray) -> None:
    """A flipped bit of an exponent; another unit; a tail, or all, that was never written."""
    assert told(values.values_outlier(case(tmp_path, norms(layer5=weight)))) == [("warning", NORM.format(5))]


def test_differences_between_layers_are_no_outliers(tmp_path: Path) -> None:
    grown = {NORM.format(layer): ("BF16", (64,), bf16(np.full(64, 0.02 * 1.8**layer))) for layer in range(LAYERS)}
    zero_biases = {f"model.layers.{layer}.self_attn.q_proj.bias": ("F32", (64,), f32(np.full(64, layer != 5)))
                   for layer in range(LAYERS)}
    assert told(values.values_outlier(case(tmp_path, grown | zero_biases))) == []


def test_padding(tmp_path: Path) -> None:
    """moonshotai/Kimi-K3: 128 values of A_log for 96 heads."""
    decay = np.where(np.arange(128) < 96, 1.5, 0)
    tensors: Tensors = {f"model.layers.{layer}.self_attn.A_log": ("F32", (128,), f32(decay)) for layer in range(3)}
    one, = values.values_padding(case(tmp_path, tensors))
    assert (one.subject, one.facts) == ("model.layers.{L}.self_attn.A_log", {"stored": 128, "used": 96})
    tensors["model.layers.1.self_attn.A_log"] = ("F32", (128,), f32(np.ones(128)))
    assert told(values.values_padding(case(tmp_path / "used", tensors))) == []
