"""Compiled limits and kernel branches of an engine."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.support.plan_models import target

from dayzero.errors import TargetError
from dayzero.schema import Finding, Layout
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

# Kimi-K2.5's language model: 384 experts, 64 heads, latent attention (192 = 128 + 64)
CONFIG: dict[str, object] = {"architectures": ["Outer"], "model_type": "outer", "text_config": {
    "model_type": "inner", "hidden_size": 7168, "num_hidden_layers": 2, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
    "vocab_size": 163840, "max_position_embeddings": 262144}}
DENSE: dict[str, object] = {
    "architectures": ["Small"], "model_type": "small", "hidden_size": 576, "num_hidden_layers": 2,
    "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "top_k": 50}


def check(folder: Path, config: dict[str, object] = CONFIG, *, tokens: int = 8192, layouts: tuple[Layout, ...] = (),
          **facts: object) -> list[Finding]:
    (folder / "config.json").write_text(json.dumps(config))
    where = target(8, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=tokens)
    engine = msgspec.structs.replace(where.engine, facts=msgspec.convert(facts, EngineRequest))
    where = msgspec.structs.replace(where, engine=engine, layouts=layouts)
    return [found for found in preflight(read(folder, cache=folder / "cache"), where).findings
            if found.rule in ("engine-limit", "engine-branch")]


@pytest.mark.parametrize(("limits", "told"), [
    ({"experts": 256}, ("n_routed_experts", 384, 256)), ({"top_k": 6}, ("num_experts_per_tok (top_k)", 8, 6)),
    ({"head_dim": 128}, ("qk_nope_head_dim", 192, 128)), ({"heads": 32}, ("num_attention_heads", 64, 32)),
    ({"n_routed_experts": 256}, ("n_routed_experts", 384, 256)),
    ({"num_local_experts": 256}, ("num_local_experts", 384, 256)), ({"layers": 1}, ("num_hidden_layers", 2, 1)),
    ({"max_positions": 131072}, ("max_position_embeddings (max_positions)", 262144, 131072)),
    ({"experts": 384, "top_k": 8, "window": 1, "linear_heads": 1}, None)])
def test_limits(tmp_path: Path, limits: dict[str, int], told: tuple[str, int, int] | None) -> None:
    found = [(one.subject, one.facts["value"], one.facts["limit"]) for one in check(tmp_path, limits=limits)]
    assert found == ([told] if told else [])


def test_limits_of_a_layout(tmp_path: Path) -> None:
    layouts = (Layout(tp=8), Layout(tp=2, dp=4, ep=8))
    found = check(tmp_path, limits={"heads_per_rank": 16, "local_experts": 100}, layouts=layouts)
    assert [(one.facts["value"], one.facts["layout"]) for one in found] == [(32, layouts[1].text), (384, "tp=8")]
    assert check(tmp_path, limits={"local_heads": 1}) == []  # no layout is asked for


def test_numbers_that_a_model_has_not(tmp_path: Path) -> None:
    # `top_k` at the top of a dense config is about sampling
    assert check(tmp_path, DENSE, limits={"top_k": 8, "experts": 1, "kv_rank": 1}) == []
    branch = {"op": "topk", "when": "always", "needs": "experts power_of_two"}
    assert check(tmp_path, DENSE, branches=[branch]) == []


def test_the_stated_group_size(tmp_path: Path) -> None:
    # 4-bit integers in groups of 64, for which no kernel was built (vllm-project/llm-compressor#1489)
    said = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}
    branch = {"op": "w4a16", "when": "bits == 4", "needs": "group_size in (32, 128)"}
    assert len(check(tmp_path, {**DENSE, **said}, branches=[branch])) == 1
    assert check(tmp_path, DENSE, branches=[branch]) == []


def test_a_limit_that_nobody_knows(tmp_path: Path) -> None:
    found, = check(tmp_path, limits={"expertz": 256})
    assert (found.severity, found.subject) == ("info", "expertz") and '"experts"' in found.hint


LONG = {"op": "biased_grouped_topk", "when": "tokens > 54272", "needs": "experts power_of_two"}  # ROCm/aiter#2359


def test_a_branch_for_long_batches(tmp_path: Path) -> None:
    found, = check(tmp_path, tokens=70000, branches=[LONG])
    assert (found.severity, found.rule, found.subject) == ("error", "engine-branch", "biased_grouped_topk")
    assert found.facts["experts"] == 384
    assert check(tmp_path, tokens=54272, branches=[LONG]) == []
    assert len(check(tmp_path, tokens=54273, branches=[LONG])) == 1


@pytest.mark.parametrize(("when", "needs", "fails"), [
    ("tokens <= 4096", "experts power_of_two", True),  # short batches are always reached
    ("tokens > 100 and tokens < 200", "experts power_of_two", True), ("tokens > 8192", "experts power_of_two", False),
    ("experts > 256", "top_k in (1, 2, 4)", True), ("experts > 256", "top_k <= 8", False),
    ("head_dim not in (64, 128)", "hidden_size multiple_of 4096", True), ("always", "experts multiple_of 128", False),
    ("tokens multiple_of 4096", "heads == 128", True), ("always", "tokens < 8192", True),
    ("tp > 1", "heads == 1", False),
    ("n_group > 1", "experts power_of_two", False), ("always", "num_attention_heads == 64", False)])
def test_branches(tmp_path: Path, when: str, needs: str, fails: bool) -> None:
    assert bool(check(tmp_path, branches=[{"op": "kernel", "when": when, "needs": needs}])) == fails


def test_branches_of_a_layout(tmp_path: Path) -> None:
    # as a decode kernel for exactly 12 local heads (sgl-project/sglang#32624)
    branch = {"op": "decode", "when": "tp >= 1", "needs": "heads / attention_tp == 8"}
    found, = check(tmp_path, branches=[branch], layouts=(Layout(tp=8), Layout(tp=4, dp=2)))
    assert found.facts["attention_tp"] == 4 and "tp=4" in str(found.facts["layout"])


@pytest.mark.parametrize("wrong", [{"when": "token > 5"}, {"needs": "experts power of two"}, {"when": "tokens >"},
                                   {"needs": "__import__('os').system('true')"}])
def test_conditions_that_are_none(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(TargetError):
        check(tmp_path, branches=[{**LONG, **wrong}])
