"""Lists in configs that speak of layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.config_release import GLM, KIMI, LLAMA, MIMO, MINIMAX, Config, nested, on, release, without

from dayzero.stages.preflight import Case
from dayzero.stages.preflight.config.rules import config_index_base, config_list_length

LINEAR = KIMI["linear_attn_config"]


@pytest.mark.parametrize(("config", "expected"), [
    (LLAMA, {}), (GLM, {}), (MIMO, {}), (MINIMAX, {}), (KIMI, {}),
    (without(LLAMA, layer_types=["full_attention"] * 31), {"layer_types": (31, [32])}),
    (nested(without(LLAMA, layer_types=["full_attention"] * 33)), {"layer_types": (33, [32])}),
    (without(GLM, indexer_types=["full"] * 79), {}),
    (without(GLM, indexer_types=["full"] * 77), {"indexer_types": (77, [78, 79])}),
    (without(GLM, mlp_layer_types=["dense"] * 3 + ["sparse"] * 77), {"mlp_layer_types": (80, [78, 79])}),
    (without(GLM, num_nextn_predict_layers=0, indexer_types=["full"] * 79), {"indexer_types": (79, [78])}),
    (without(MIMO, moe_layer_freq=[0] + [1] * 46), {"moe_layer_freq": (47, [48])}),
    (without(MIMO, hybrid_layer_pattern=[0, 1] * 23), {"hybrid_layer_pattern": (46, [48])}),
    (without(MINIMAX, sparse_attention_config={"sparse_attention_freq": [1] * 61}), {}),
    (without(MINIMAX, sparse_attention_config={"sparse_attention_freq": [1] * 59}),
     {"sparse_attention_config.sparse_attention_freq": (59, [60, 61, 67])}),
    # a DeepSeek-V4 of 78 layers: one entry more, for the layer of multi-token prediction
    (without(GLM, compress_ratios=[0, 4] * 39 + [4]), {}),
    (without(GLM, compress_ratios=[0, 4] * 38), {"compress_ratios": (76, [78, 79])}),
    # a hybrid as a string of letters
    (without(LLAMA, num_hidden_layers=4, hybrid_override_pattern="M*M-"), {}),
    (without(LLAMA, num_hidden_layers=4, hybrid_override_pattern="M*M"), {"hybrid_override_pattern": (3, [4])}),
    # lists that are not about layers
    (without(LLAMA, eos_token_id=[1, 2, 3], mrope_section=[16, 24, 24]), {}),
    (without(LLAMA, vision_config={"layer_types": ["full_attention"] * 5}), {}),
    # lists of layer numbers
    (without(KIMI, num_hidden_layers=25), {"linear_attn_config.full_attn_layers": (27, [25]),
                                           "linear_attn_config.kda_layers": (26, [25]),
                                           "linear_attn_config.full_attn_layers + linear_attn_config.kda_layers":
                                           (27, [25])}),
    (without(KIMI, linear_attn_config={**LINEAR, "kda_layers": LINEAR["kda_layers"][:-1]}),
     {"linear_attn_config.full_attn_layers + linear_attn_config.kda_layers": (26, [27])}),
    (without(KIMI, linear_attn_config={**LINEAR, "kda_layers": [*LINEAR["kda_layers"], 27]}),
     {"linear_attn_config.full_attn_layers + linear_attn_config.kda_layers": (28, [27])}),
    (without(KIMI, linear_attn_config={
        **LINEAR, **{key: [n - 1 for n in LINEAR[key]] for key in ("full_attn_layers", "kda_layers")}}), {}),
    (without(GLM, "first_k_dense_replace", mlp_only_layers=[0, 1, 2]), {}),
    (without(GLM, "first_k_dense_replace", moe_layers=list(range(1, 79)), num_nextn_predict_layers=0), {}),
    (without(GLM, mtp_layer_types=["full_attention"]), {}),
    (without(GLM, "first_k_dense_replace", mlp_only_layers=[0, 1, 90]), {"mlp_only_layers": (91, [78, 79])}),
])  # fmt: skip
def test_lengths(tmp_path: Path, config: Config, expected: dict[str, tuple[int, list[int]]]) -> None:
    found = list(config_list_length(Case(release(tmp_path / "release", config), on())))
    assert {finding.subject: (finding.facts["length"], finding.facts["allowed"]) for finding in found} == expected
    assert {finding.severity for finding in found} <= {"error"}


@pytest.mark.parametrize(("config", "expected"), [
    (LLAMA, {}), (MIMO, {}), (without(GLM, mlp_only_layers=[]), {}),
    # moonshotai/Kimi-Linear-48B-A3B-Instruct, as published and counted from 0
    (KIMI, {"linear_attn_config.full_attn_layers": 1, "linear_attn_config.kda_layers": 1}),
    (nested(KIMI), {"linear_attn_config.full_attn_layers": 1, "linear_attn_config.kda_layers": 1}),
    (without(KIMI, linear_attn_config={
        **LINEAR, **{key: [n - 1 for n in LINEAR[key]] for key in ("full_attn_layers", "kda_layers")}}),
     {"linear_attn_config.full_attn_layers": 0, "linear_attn_config.kda_layers": 0}),
    # Llama 4's list of layers with experts
    (without(GLM, "first_k_dense_replace", moe_layers=list(range(1, 78, 2))), {"moe_layers": 0}),
])
def test_index_base(tmp_path: Path, config: Config, expected: dict[str, int]) -> None:
    found = list(config_index_base(Case(release(tmp_path / "release", config), on())))
    assert {finding.subject: finding.facts["base"] for finding in found} == expected
    assert {finding.severity for finding in found} <= {"info"}
