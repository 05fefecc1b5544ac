"""One head that is key and value at once, in a cache compressed along the sequence; output groups; layers with an
indexer. Dimensions of DeepSeek-V4-Flash and GLM-5.2."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import GLM, release, without

from dayzero.data import engine
from dayzero.errors import ReleaseError
from dayzero.ops import cache_bytes_per_token
from dayzero.placement import findings
from dayzero.placement.cache import allocation_of, kinds
from dayzero.schema import Layout
from dayzero.stages.read.config import Config
from dayzero.stages.read.facts import language_facts
from dayzero.stages.read.layers import indexed_layers, merged_tokens

FLASH: dict[str, Any] = {  # config.json of deepseek-ai/DeepSeek-V4-Flash
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096, "head_dim": 512,
    "num_attention_heads": 64, "num_key_value_heads": 1, "num_hidden_layers": 43, "q_lora_rank": 1024,
    "qk_rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024, "n_routed_experts": 256, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "expert_dtype": "fp4", "index_head_dim": 128,
    "index_n_heads": 64, "index_topk": 512, "sliding_window": 128, "vocab_size": 129280, "hidden_act": "silu",
    "max_position_embeddings": 1048576, "rope_theta": 10000, "hc_mult": 4, "tie_word_embeddings": False,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "rms_norm_eps": 1e-6,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip


def test_a_single_compressed_head_is_a_latent_cache_that_several_tokens_share(tmp_path: Path) -> None:
    model = release(tmp_path / "flash", FLASH).model
    assert model.attention_layers() == {"latent": 43}
    own = model.attentions["latent/4"]
    assert (own.kv_rank, own.rope_dim, own.head_dim, own.v_head_dim, own.merged) == (448, 64, 512, 512, 4)
    assert model.attentions["latent/0"].window == 128 and own.window is None and own.is_entry_head
    assert own.near == 128 and model.attentions["latent/0"].near is None
    # 21 layers keep 512 values for 4 tokens, 20 for 128 tokens, 2 a window alone
    attentions = [model.attentions[layer.attention] for layer in model.layers]
    whole = [cache_bytes_per_token(attention) for attention in attentions if attention.window is None]
    assert sum(whole) == 21 * 512 * 2 // 4 + 20 * 512 * 2 // 128


def test_its_sizes_are_those_that_are_published(tmp_path: Path) -> None:
    model = release(tmp_path / "flash", FLASH).model
    # the model that transformers builds on the meta device has 284.332e9; its card says 13e9 active
    assert model.parameters == pytest.approx(284.332e9, rel=0.001)
    assert model.parameters_active["no_embedding"] == pytest.approx(13e9, rel=0.03)
    experts = [family for family in model.families if family.experts and "scale" not in family.pattern]
    assert {family.scheme for family in experts} == {"mxfp4"} and {family.block for family in experts} <= {1, 32}
    assert model.checkpoint_bytes == pytest.approx(156e9, rel=0.02)


def test_its_cache_needs_no_replication_and_its_output_groups_are_not_cut(tmp_path: Path) -> None:
    model = release(tmp_path / "flash", FLASH).model
    assert findings(model, Layout(tp=8), engine("any")) == ()
    found = {(finding.rule, finding.subject): finding for finding in findings(model, Layout(tp=16), engine("any"))}
    assert set(found) == {("shard-heads", "o_groups")}
    assert found["shard-heads", "o_groups"].facts | {"valid": 0} == {"value": 8, "tp": 16, "valid": 0}


@pytest.mark.parametrize("changed", [{"num_key_value_heads": 8}, {"q_lora_rank": None}, {"qk_rope_head_dim": None}])
def test_other_heads_are_no_latent_cache(tmp_path: Path, changed: dict[str, Any]) -> None:
    model = release(tmp_path / "other", {**FLASH, **changed}).model
    assert "latent" not in model.attention_layers()


def layers(**keys: Any) -> tuple[list[int], frozenset[int]]:
    """(tokens that share an entry, layers with an indexer) of six layers."""
    config = Config({**FLASH, "num_hidden_layers": 6, "compress_ratios": None, **keys})
    facts = language_facts(config)
    return merged_tokens(config, facts), indexed_layers(config, facts, ["latent"] * facts["layers"])


def test_entries_of_several_tokens() -> None:
    assert layers(compress_ratios=[0, 0, 4, 128, 4, 128, 0]) == ([0, 0, 4, 128, 4, 128], frozenset({2, 4}))
    assert layers() == ([1] * 6, frozenset(range(6)))
    words = ["sliding_attention", "csa", "hca"] * 2
    assert layers(layer_types=words, compress_rates={"csa": 4, "hca": 128})[0] == [0, 4, 128] * 2
    with pytest.raises(ReleaseError, match="compress_ratios is not a list of numbers"):
        layers(compress_ratios=[4, "many"])


def test_layers_that_share_an_indexer_have_none() -> None:
    assert layers(indexer_types=["full", "shared", "shared"] * 2)[1] == {0, 3}
    assert layers(index_n_heads=None)[1] == frozenset()


def test_shared_indexers_are_not_counted(tmp_path: Path) -> None:
    every = release(tmp_path / "every", GLM).model.parameters
    few = release(tmp_path / "few", without(GLM, indexer_types=["full"] * 21 + ["shared"] * 57)).model.parameters
    indexer = 32 * 128 * 2048 + 128 * 6144 + 2 * 128 + 32 * 6144
    assert every - few == 57 * indexer


def test_what_an_engine_stores_for_an_entry_is_shared_too(tmp_path: Path) -> None:
    model = release(tmp_path / "flash", FLASH).model
    rules = allocation_of(engine("vllm"))
    assert rules is not None
    found = {kind.layers: kind.entry for kind in kinds(model, Layout(), rules, range(43), "fp8_ds_mla")}
    assert found == {21: ceil(656 / 4) + ceil(rules.indexer_bytes / 4), 20: ceil(656 / 128), 2: 656}
