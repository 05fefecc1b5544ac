"""Experts without weights: what the router ranks, what has weights and what a token visits."""

from __future__ import annotations

import pytest

from dayzero.errors import ReleaseError
from dayzero.ops import distinct_experts
from dayzero.schema import TensorTable
from dayzero.stages.read.spec import model_spec

# The numbers of meituan-longcat/LongCat-Flash-Chat config.json; standard blocks stand for its own.
CONFIG = {"hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "ffn_hidden_size": 12288,
          "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12,
          "vocab_size": 131072, "max_position_embeddings": 131072}
NOTHING = TensorTable(files=(), groups=())


def test_a_token_visits_the_share_of_the_choices_that_has_weights() -> None:
    block = model_spec("x", CONFIG, NOTHING).feed_forwards["experts"]
    assert (block.experts, block.zero_experts, block.choices, block.top_k) == (512, 256, 768, 12)
    assert block.visited == 8  # 12 * 512 / 768
    touched = distinct_experts(block.experts, block.visited, 100) / block.experts
    assert touched == pytest.approx(distinct_experts(768, 12, 100) / 768)


def test_the_router_ranks_all_and_active_parameters_count_those_with_weights() -> None:
    model = model_spec("x", CONFIG, NOTHING)
    router = next(family for family in model.families if family.role == "router")
    assert router.shape == (768, 6144)
    without = model_spec("x", {**CONFIG, "zero_expert_num": 0, "moe_topk": 8}, NOTHING)
    fewer_rows = 28 * 256 * 6144
    assert model.parameters_active["all"] - fewer_rows == without.parameters_active["all"]


def test_more_per_token_than_choices_is_refused() -> None:
    model_spec("x", {**CONFIG, "n_routed_experts": 8, "zero_expert_num": 4}, NOTHING)
    with pytest.raises(ReleaseError, match="12 of 11 experts"):
        model_spec("x", {**CONFIG, "n_routed_experts": 8, "zero_expert_num": 3}, NOTHING)
