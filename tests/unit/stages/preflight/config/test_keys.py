"""Keys that an engine leaves unread, and unusual spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import GEMMA, GLM, KIMI, LLAMA, MIMO, MINIMAX, Config, nested, on, release, without

from dayzero.schema.consumption import Consumption
from dayzero.stages.preflight import Case
from dayzero.stages.preflight.config.keys import config_alias, config_unread

EXPERTS = ["hidden_act", "hidden_size", "moe_intermediate_size", "num_experts_per_tok", "routed_scaling_factor"]
SWIGLU = ["swiglu_limit", "swiglu_alpha", "swiglu_beta"]
GPT_OSS = without(MINIMAX, "swiglu_alpha", "swiglu_beta", "n_shared_experts", "shared_intermediate_size",
                  "first_k_dense_replace", "sparse_attention_config", moe_layer_freq=1, hidden_act="silu")
K3 = without(KIMI, hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0,
             routed_scaling_factor=1.0)
V4 = without(GLM, "kv_lora_rank", swiglu_limit=10.0, head_dim=512, first_k_dense_replace=0)


def unread(folder: Path, config: Config, reads: dict[str, list[str]], **facts: Any) -> set[tuple[str, str]]:
    found = list(config_unread(Case(release(folder / "release", config), on(config_reads=reads, **facts))))
    assert {finding.severity for finding in found} <= {"error"}
    return {(finding.subject, finding.facts["role"]) for finding in found}


@pytest.mark.parametrize(("config", "reads", "expected"), [
    # vllm-project/vllm-ascend#14398: the limit in the shared expert alone
    (V4, {"shared_experts": [*EXPERTS, "swiglu_limit"], "routed_experts": EXPERTS},
     {("swiglu_limit", "routed_experts")}),
    (V4, {"shared_experts": EXPERTS, "routed_experts": [*EXPERTS, "swiglu_limit"]},
     {("swiglu_limit", "shared_experts")}),
    (V4, {"shared_experts": EXPERTS, "routed_experts": EXPERTS, "*": ["swiglu_limit"]}, set()),
    (nested(V4), {"routed_experts": EXPERTS}, {("swiglu_limit", "routed_experts")}),
    (nested(V4), {"routed_experts": [*EXPERTS, "text_config.swiglu_limit"]}, set()),
    (without(V4, swiglu_limit=None), {"routed_experts": EXPERTS}, set()),
    (without(V4, swiglu_limit=[0.0] * 78), {"routed_experts": EXPERTS}, set()),
    (without(V4, swiglu_limit=[0.0] * 77 + [7.0]), {"routed_experts": EXPERTS}, {("swiglu_limit", "routed_experts")}),
    # vllm-project/vllm#46845: two of three parameters lost on the quantised path
    (MINIMAX, {"routed_experts": [*EXPERTS, "swiglu_limit"]},
     {("swiglu_alpha", "routed_experts"), ("swiglu_beta", "routed_experts")}),
    (MINIMAX, {"routed_experts": [*EXPERTS, *SWIGLU], "dense_mlp": ["hidden_act"]},
     {(key, "dense_mlp") for key in SWIGLU}),
    (GPT_OSS, {"routed_experts": [*EXPERTS, *SWIGLU], "dense_mlp": [], "shared_experts": []}, set()),
    (K3, {"routed_experts": ["hidden_act"]},
     {("activation_situ_beta", "routed_experts"), ("activation_situ_linear_beta", "routed_experts")}),
    (K3, {"routed_experts": ["hidden_act", "activation_situ_*"]}, set()),
    # sgl-project/sglang#35152: the factor on the experts' output; read by the router it need not be read again
    (GLM, {"routed_experts": ["hidden_act"]}, {("routed_scaling_factor", "routed_experts")}),
    (GLM, {"routed_experts": ["hidden_act"], "router": EXPERTS},
     {("scoring_func", "router"), ("norm_topk_prob", "router")}),
    (GLM, {"router": ["routed_scaling_factor", "scoring_func", "norm_topk_prob"]}, set()),
    (without(GLM, n_group=8, topk_group=4), {"router": ["routed_scaling_factor", "scoring_func", "norm_topk_prob"]},
     {("n_group", "router"), ("topk_group", "router")}),
    (KIMI, {"router": [*EXPERTS, "scoring_func", "norm_topk_prob"]},
     {("moe_router_activation_func", "router"), ("moe_renormalize", "router")}),
    (LLAMA, {"routed_experts": [], "router": [], "shared_experts": [], "dense_mlp": [], "indexer": []}, set()),
    # huggingface/transformers#46842: the indexer's layout, and what goes with it
    (GLM, {"indexer": ["index_topk", "index_n_heads"]}, {("indexer_rope_interleave", "indexer")}),
    (GLM, {"indexer": ["index_topk", "indexer_rope_interleave"]}, set()),
    (MINIMAX, {"indexer": ["sparse_attention_config"]}, set()),
    (MINIMAX, {"indexer": ["sparse_block_size"]}, {("sparse_attention_config.sparse_topk_blocks", "indexer"),
                                                   ("sparse_attention_config.sparse_local_block", "indexer")}),
    (LLAMA, {"norm": []}, {("rms_norm_eps", "norm")}),
    (MIMO, {"norm": ["rms_norm_eps"]}, {("layernorm_epsilon", "norm")}),
    (MIMO, {"attention": ["sliding_window_size", "head_dim"]},
     {("attention_value_scale", "attention"), ("add_swa_attention_sink_bias", "attention")}),
    (MIMO, {"attention": ["attention_value_scale", "add_swa_attention_sink_bias"]}, {("sliding_window", "attention")}),
    (without(LLAMA, sliding_window=None), {"attention": []}, set()),
    (GEMMA, {"attention": ["sliding_window"]}, set()),
    (without(GEMMA, query_pre_attn_scalar=168), {"attention": ["sliding_window"]},
     {("query_pre_attn_scalar", "attention")}),
    # positions
    (LLAMA, {"rotary": ["rope_theta"]}, {("rope_scaling", "rotary")}),
    (LLAMA, {"rotary": ["rope_theta", "rope_scaling"]}, set()),
    (LLAMA, {"rotary": ["rope_scaling"], "attention": ["rope_theta"]}, set()),
    (MINIMAX, {"rotary": ["rope_theta", "rotary_dim"]}, set()),
    (MINIMAX, {"rotary": ["rope_theta"]}, {("partial_rotary_factor", "rotary")}),
    (GEMMA, {"rotary": ["rope_theta", "rope_scaling"]}, {("rope_local_base_freq", "rotary")}),
    (GLM, {"rotary": ["rope_theta", "rope_interleave"]}, {("rope_parameters", "rotary")}),
    (GLM, {"rotary": ["rope_parameters.rope_theta", "rope_interleave"]}, set()),
    (without(KIMI, mla_use_nope=True), {"rotary": []}, {("mla_use_nope", "rotary")}),
    # one list for the whole model, and a list that is evidently not one
    (V4, {"*": ["hidden_size", "hidden_act", "routed_scaling_factor", "scoring_func", "norm_topk_prob", "rms_norm_eps",
                "rope_parameters", "rope_interleave", "index_topk", "indexer_rope_interleave"]},
     {("swiglu_limit", "*")}),
    (V4, {"*": ["rope_parameters"]}, set()),
])  # fmt: skip
def test_unread(tmp_path: Path, config: Config, reads: dict[str, list[str]], expected: set[tuple[str, str]]) -> None:
    assert unread(tmp_path, config, reads) == expected


def test_what_an_engine_has_built_in_is_not_unread(tmp_path: Path) -> None:
    assert unread(tmp_path, V4, {"routed_experts": EXPERTS}, config_defaults={"swiglu_limit": 10.0}) == set()
    found = list(config_unread(Case(release(tmp_path / "release", V4),
                                    on(config_reads={"routed_experts": EXPERTS}, config_defaults={"swiglu_limit": 7}))))
    assert [finding.facts["would_use"] for finding in found] == [7]
    assert "it assumes 7" in found[0].message


def test_a_layout_that_is_stated_of_the_engine_need_not_be_read(tmp_path: Path) -> None:
    reads = {"rotary": ["rope_parameters"], "indexer": ["index_topk"]}
    assert unread(tmp_path, GLM, reads) == {("rope_interleave", "rotary"), ("indexer_rope_interleave", "indexer")}
    assert unread(tmp_path, GLM, reads, rope_layout={"indexer": "half_split"}) == {("rope_interleave", "rotary")}


def test_a_part_that_is_not_known_is_said(tmp_path: Path) -> None:
    found = list(config_unread(Case(release(tmp_path / "release", GLM), on(config_reads={"routed_expert": []}))))
    assert [(finding.severity, finding.subject) for finding in found] == [("info", "routed_expert")]


def test_nothing_is_said_without_a_statement_about_the_engine(tmp_path: Path) -> None:
    assert not list(config_unread(Case(release(tmp_path / "release", V4), on())))


def consumed(folder: Path, config: Config, **fields: Any) -> dict[str, dict[str, Any]]:
    seen = Consumption(source="transformers 5.24.0 SomeClass", **fields)
    found = list(config_unread(Case(release(folder / "release", config), on(), consumption=seen)))
    assert {finding.severity for finding in found} <= {"info"}
    return {finding.subject: finding.facts for finding in found}


READ = dict.fromkeys(
    ("routed_scaling_factor", "norm_topk_prob", "rms_norm_eps", "scoring_func", "rope_interleave", "index_topk",
     "indexer_types", "rope_parameters"), ("modeling_some.py:1",))


def test_what_the_library_does_not_read_is_told(tmp_path: Path) -> None:
    # huggingface/transformers#46842: GlmMoeDsaIndexer rotates halves, the config asks for neighbours
    assert consumed(tmp_path, GLM, reads=READ) == {"indexer_rope_interleave": {
        "role": "indexer", "value": True, "library": "transformers 5.24.0 SomeClass"}}
    assert not consumed(tmp_path, GLM | {"indexer_rope_interleave": False}, reads=READ)  # changes nothing
    assert not consumed(tmp_path, GLM, reads=READ | {"index_rope_interleave": ("modeling_some.py:2",),
                                                     "indexer_rope_interleave": ("modeling_some.py:2",)})


def test_nothing_is_told_where_the_library_was_not_watched_to_the_end(tmp_path: Path) -> None:
    assert not consumed(tmp_path, GLM, impossible="torch is not installed")
    assert not consumed(tmp_path, GLM, reads=READ, incomplete="the forward pass failed")


def test_a_key_that_the_releases_own_code_ignores_is_not_missed(tmp_path: Path) -> None:
    code = """
class SomeExperts(Module):
    def __init__(self, config):
        self.width = config.hidden_size
        self.factor = getattr(config, "routed_scaling_factor", 1.0)
"""
    read = release(tmp_path / "release", V4, modeling_some=code)
    found = list(config_unread(Case(read, on(config_reads={"routed_experts": [], "norm": []}))))
    assert {finding.subject for finding in found} == {"routed_scaling_factor"}


@pytest.mark.parametrize(("config", "expected"), [
    (LLAMA, {}), (GLM, {}), (GEMMA, {}),
    # moonshotai/Kimi-Linear-48B-A3B-Instruct config.json
    (KIMI, {"num_experts_per_token": 8, "num_shared_experts": 1, "moe_renormalize": True, "num_expert_group": 1,
            "moe_router_activation_func": "sigmoid", "model_max_length": 1048576}),
    # MiniMax-M3 states two numbers of prediction layers, and two widths
    (MINIMAX, {"num_mtp_modules": 7, "shared_intermediate_size": 3072, "dense_intermediate_size": 12288}),
    (nested(without(LLAMA, "num_hidden_layers", n_layers=32)), {"n_layers": 32}),
])
def test_aliases(tmp_path: Path, config: Config, expected: dict[str, Any]) -> None:
    found = list(config_alias(Case(release(tmp_path / "release", config), on())))
    assert {finding.subject: finding.facts["value"] for finding in found} == expected
    assert {finding.severity for finding in found} <= {"info"}
