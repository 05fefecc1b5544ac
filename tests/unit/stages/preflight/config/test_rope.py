"""Layout and base of rotary positions: what the config states against what the engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import GEMMA, GLM, KIMI, LLAMA, MIMO, MINIMAX, Config, nested, on, release, without

from dayzero.stages.preflight import Case
from dayzero.stages.preflight.config.rope import rope_base, rope_layout

HALF, PAIRS = "half_split", "interleaved"
FLAT = ["rope_theta", "rope_scaling", "rope_interleave", "max_position_embeddings"]
SMOLLM = without(LLAMA, rope_interleaved=False)
V3 = without(GLM, "indexer_rope_interleave", "rope_interleave", "index_topk", "index_n_heads", "index_head_dim")
GEMMA5: Config = without(GEMMA, "rope_theta", "rope_local_base_freq", "rope_scaling", rope_parameters={
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"}})


@pytest.mark.parametrize(("config", "layout", "expected"), [
    # huggingface/transformers#46842, ikawrakow/ik_llama.cpp#2099, ml-explore/mlx-lm#1453
    (GLM, {"attention": PAIRS, "indexer": HALF}, {"indexer_rope_interleave": 2049}),
    (GLM, {"attention": PAIRS, "indexer": PAIRS}, {}),
    (GLM, {"attention": HALF, "indexer": HALF}, {"indexer_rope_interleave": 2049, "rope_interleave": 2}),
    (GLM, {"attention": PAIRS}, {}),
    (GLM, {}, {}),
    (nested(without(GLM, index_topk=512)), {"indexer": HALF}, {"indexer_rope_interleave": 513}),
    (without(GLM, indexer_rope_interleave=False), {"attention": PAIRS, "indexer": HALF}, {}),
    (without(GLM, indexer_rope_interleave=False), {"indexer": PAIRS}, {"indexer_rope_interleave": 2049}),
    (without(GLM, "indexer_rope_interleave"), {"indexer": HALF}, {}),
    (without(MINIMAX, index_rope_interleave=True), {"indexer": HALF}, {"index_rope_interleave": 2049}),
    (SMOLLM, {"attention": HALF}, {}),
    (SMOLLM, {"attention": PAIRS}, {"rope_interleaved": 2}),
    (without(KIMI, rope_interleave=True), {"attention": HALF}, {}),
    (LLAMA, {"attention": PAIRS, "vision": PAIRS}, {}),
])
def test_layout(tmp_path: Path, config: Config, layout: dict[str, str], expected: dict[str, int]) -> None:
    found = list(rope_layout(Case(release(tmp_path / "release", config), on(rope_layout=layout))))
    assert {finding.subject: finding.facts["min_test_tokens"] for finding in found} == expected
    assert {finding.severity for finding in found} <= {"error"}


def test_the_shipped_configuration_class_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    code = "class SomeConfig(Base):\n    def __init__(self, hidden_size=4, rope_interleave=True, **more): ...\n"
    read = release(tmp_path / "release", V3, configuration_some=code)
    found = list(rope_layout(Case(read, on(rope_layout={"attention": HALF}))))
    assert [(finding.subject, finding.facts["model"]) for finding in found] == [("rope_interleave", PAIRS)]
    assert not list(rope_layout(Case(read, on(rope_layout={"attention": PAIRS}))))


@pytest.mark.parametrize(("stated", "assumed", "expected"), [
    ({}, 1e4, [("rope_theta", 640000, 10000)]), ({}, 640000, []), ({"rope_theta": 500000.0}, 1e4, []),
    ({"alibi": True}, 1e4, []),
])
def test_defaults_of_class_and_engine(tmp_path: Path, stated: Config, assumed: float, expected: list[Any]) -> None:
    code = "class SomeConfig(Base):\n    def __init__(self, rope_theta=640000.0, **more): ...\n"
    config = {**without(LLAMA, "rope_theta", "rope_scaling"), **stated}
    read = release(tmp_path / "release", config, configuration_some=code)
    found = list(rope_base(Case(read, on(config_defaults={"rope_theta": assumed}))))
    assert [(one.subject, one.facts["correct"], one.facts["would_use"]) for one in found] == expected


@pytest.mark.parametrize(("config", "facts", "expected"), [
    # GLM-5.2: moved into rope_parameters; cf. deepspeedai/DeepSpeed#8341
    (GLM, {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_theta": 10000.0}},
     {"rope_theta": (8000000, 10000)}),
    (nested(GLM), {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_theta": 10000.0}},
     {"rope_theta": (8000000, 10000)}),
    (GLM, {"config_reads": {"rotary": [*FLAT, "rope_parameters"]}, "config_defaults": {"rope_theta": 10000.0}}, {}),
    (GLM, {"config_reads": {"attention": FLAT}, "config_defaults": {"rope_theta": 10000.0}},
     {"rope_theta": (8000000, 10000)}),
    (GLM, {"config_reads": {"*": FLAT}, "config_defaults": {"rope_theta": 10000.0}}, {"rope_theta": (8000000, 10000)}),
    (GLM, {"config_reads": {"norm": ["rms_norm_eps"]}, "config_defaults": {"rope_theta": 10000.0}}, {}),
    (GLM, {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_theta": 8000000}}, {}),
    (GLM, {"config_reads": {"rotary": FLAT}}, {}),
    (GLM, {"config_defaults": {"rope_theta": 10000.0}}, {}),
    # both spellings, of which the table counts
    (without(GLM, rope_theta=10000), {"config_reads": {"rotary": FLAT}}, {"rope_theta": (8000000, 10000)}),
    (without(GLM, rope_theta=8000000), {"config_reads": {"rotary": FLAT}}, {}),
    # an old config and a reader of the table alone; transformers 5 makes the table from the flat keys
    (LLAMA, {"config_reads": {"rotary": ["rope_parameters"]}, "config_defaults": {"rope_theta": 10000.0}},
     {"rope_theta": (500000, 10000)}),
    (LLAMA, {"config_reads": {"rotary": ["rope_parameters"]}, "config_defaults": {"rope_theta": 10000.0},
             "transformers": "5.12.0"}, {}),
    (LLAMA, {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_theta": 10000.0}}, {}),
    # sliding layers with a base of their own: gemma-3, MiMo-V2-Flash
    (GEMMA, {"config_reads": {"rotary": FLAT}}, {"rope_local_base_freq": (10000, 1000000)}),
    (GEMMA, {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_local_base_freq": 10000}}, {}),
    (GEMMA, {"config_reads": {"rotary": [*FLAT, "rope_local_base_freq"]}}, {}),
    (MIMO, {"config_reads": {"rotary": FLAT}}, {"swa_rope_theta": (10000, 5000000)}),
    (GEMMA5, {"config_reads": {"rotary": ["rope_parameters"]}}, {}),
    (GEMMA5, {"config_reads": {"rotary": FLAT}, "config_defaults": {"rope_theta": 1000000}},
     {"rope_parameters.sliding_attention.rope_theta": (10000, 1000000)}),
    (without(KIMI, rope_theta=800000.0), {"config_reads": {"rotary": []}, "config_defaults": {"rope_theta": 1e4}}, {}),
])
def test_base(tmp_path: Path, config: Config, facts: dict[str, Any], expected: dict[str, tuple[float, float]]) -> None:
    found = list(rope_base(Case(release(tmp_path / "release", config), on(**facts))))
    told = {finding.subject: (finding.facts["correct"], finding.facts["would_use"]) for finding in found}
    assert told == expected
    assert {finding.severity for finding in found} <= {"error"}
