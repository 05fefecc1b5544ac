"""Values of a config that make no sense, and words that are not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import GEMMA, GLM, KIMI, LLAMA, MIMO, MINIMAX, Config, nested, on, release, without

from dayzero.schema import Release
from dayzero.schema.base import from_json, to_json
from dayzero.stages.preflight import Case
from dayzero.stages.preflight.config.values import config_value

NAN, INFINITY = float("nan"), float("inf")


def told(folder: Path, config: Config) -> set[tuple[str, str]]:
    """What is found, which is the same for the release once it was stored as JSON."""
    made = release(folder / "r", config)
    found, again = ({(one.severity, one.subject) for one in config_value(Case(each, on()))}
                    for each in (made, from_json(to_json(made), Release)))
    assert found == again
    return found


@pytest.mark.parametrize("config", [LLAMA, GLM, MIMO, KIMI, GEMMA, MINIMAX, nested(LLAMA)])
def test_published_configs(tmp_path: Path, config: Config) -> None:
    assert told(tmp_path, config) == set()


@pytest.mark.parametrize(("key", "value"), [
    ("rope_theta", NAN), ("rope_theta", INFINITY), ("rope_theta", 0), ("rope_theta", -1e4), ("rope_theta", "10000"),
    ("rope_theta", True), ("rope_theta", 10**400), ("rms_norm_eps", NAN), ("rms_norm_eps", INFINITY),
    ("rms_norm_eps", 0), ("rms_norm_eps", -1e-5), ("rms_norm_eps", "1e-5"), ("layer_norm_epsilon", -1.0),
    ("rope_local_base_freq", 0.0)])
def test_numbers_that_make_no_sense(tmp_path: Path, key: str, value: Any) -> None:
    assert told(tmp_path, LLAMA | {key: value}) == {("error", key)}


def test_a_base_for_each_layer(tmp_path: Path) -> None:
    assert told(tmp_path, LLAMA | {"rope_theta": [1e4] * 32}) == set()
    assert told(tmp_path, LLAMA | {"rope_theta": [1e4] * 31 + [None]}) == set()
    assert told(tmp_path, LLAMA | {"rope_theta": [1e4] * 31 + [NAN]}) == {("error", "rope_theta")}


def test_a_base_in_a_table(tmp_path: Path) -> None:
    wrong = {"full_attention": {"rope_theta": -1, "rope_type": "default"}}
    assert told(tmp_path, without(LLAMA, "rope_theta", "rope_scaling", rope_parameters=wrong)) == {
        ("error", "rope_parameters.full_attention.rope_theta")}


def test_a_base_that_nothing_uses(tmp_path: Path) -> None:
    assert told(tmp_path, LLAMA | {"alibi": True, "rope_theta": 0}) == set()


# Phi-3-mini-128k had su, now longrope; gpt-oss yarn; Qwen2-VL mrope
@pytest.mark.parametrize(("word", "known"), [("su", True), ("longrope", True), ("yarn", True), ("mrope", True),
                                             ("yarm", False), ("", False), (7, False)])
def test_kinds_of_scaling(tmp_path: Path, word: Any, known: bool) -> None:
    found = told(tmp_path, LLAMA | {"rope_scaling": {"rope_type": word, "factor": 8.0}})
    assert found == (set() if known else {("warning", "rope_scaling.rope_type")})


# Kimi-K3 has situ, MiniMax-M3 swigluoai, Nemotron relu2, Apertus xielu
@pytest.mark.parametrize(("word", "known"), [("situ", True), ("swigluoai", True), ("relu2", True), ("xielu", True),
                                             ("SiLU", True), ("silo", False)])
def test_activations(tmp_path: Path, word: str, known: bool) -> None:
    assert told(tmp_path, LLAMA | {"hidden_act": word}) == (set() if known else {("warning", "hidden_act")})


@pytest.mark.parametrize(("word", "known"), [("bfloat16", True), ("torch.float16", True), ("auto", True),
                                             ("float8_e4m3fn", True), ("float7", False)])
def test_dtypes(tmp_path: Path, word: str, known: bool) -> None:
    assert told(tmp_path, LLAMA | {"torch_dtype": word}) == (set() if known else {("warning", "torch_dtype")})


def test_kinds_of_layers(tmp_path: Path) -> None:
    kinds = ["full_attention", "linear_attention", "conv", "sliding_attention"] * 8  # LFM2 has conv
    assert told(tmp_path, LLAMA | {"layer_types": kinds}) == set()
    assert told(tmp_path, LLAMA | {"layer_types": [*kinds[:-1], "full_atention"]}) == {("warning", "layer_types")}


@pytest.mark.parametrize(("block", "wrong"), [([128, 128], False), ([1, 128], False), (None, False), ([0, 0], True),
                                              ([128], True), ([128, -1], True), ("128", True)])
def test_sizes_of_a_block(tmp_path: Path, block: Any, wrong: bool) -> None:
    table = {"quant_method": "fp8", "weight_block_size": block}
    found = told(tmp_path, LLAMA | {"quantization_config": table})
    assert found == ({("error", "quantization_config.weight_block_size")} if wrong else set())
