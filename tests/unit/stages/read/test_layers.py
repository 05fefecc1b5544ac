"""Kinds of layers: the many ways in which configs say them, index bases, and the files' word against the config's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import ReleaseError
from dayzero.schema import TensorTable
from dayzero.stages.read.config import Config
from dayzero.stages.read.facts import language_facts
from dayzero.stages.read.layers import attention_kinds, feed_forward_kinds, index_base
from dayzero.stages.read.spec import model_spec

BASE: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 100,
                        "max_position_embeddings": 512, "intermediate_size": 96}
LINEAR = {"linear_num_value_heads": 4, "linear_key_head_dim": 8}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def mixing(evidence: dict[int, frozenset[str]] | None = None, **keys: Any) -> str:
    """First letters of the kinds (`a` for latent)."""
    config = Config({**BASE, **keys})
    kinds = attention_kinds(config, language_facts(config), evidence or {})
    return "".join({"latent": "a"}.get(kind, kind[0]) for kind in kinds)


def feeding(evidence: dict[int, frozenset[str]] | None = None, **keys: Any) -> str:
    """First letters of the kinds."""
    config = Config({**BASE, **MOE, **keys})
    return "".join(kind[0] for kind in feed_forward_kinds(config, language_facts(config), evidence or {}))


@pytest.mark.parametrize(("keys", "kinds"), [
    ({}, "ffffff"),
    ({"sliding_window": 128}, "ssssss"),
    ({"sliding_window": 128, "use_sliding_window": False}, "ffffff"),
    ({"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 4}, "ffffss"),
    ({"sliding_window": 1024}, "ffffff"),
    ({"sliding_window": 128, "sliding_window_pattern": 3}, "ssfssf"),
    ({"sliding_window": 128, "sliding_window_pattern": "LLG"}, "ssfssf"),
    ({"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1]}, "fssfss"),
    ({"attn_type_list": [0, 0, 1, 0, 0, 1], **LINEAR}, "llfllf"),
    ({"full_attention_interval": 3, **LINEAR}, "llfllf"),
    ({"layer_types": ["linear_attention", "full_attention"] * 3, **LINEAR}, "lflflf"),
    ({"kv_lora_rank": 16, "qk_rope_head_dim": 4}, "aaaaaa"),
    ({"kv_lora_rank": 16, "linear_attn_config": {"full_attn_layers": [3, 6], "kda_layers": [1, 2, 4, 5]}}, "llalla"),
    ({"kv_lora_rank": 16, "linear_attn_config": {"full_attn_layers": [2, 5], "kda_layers": [0, 1, 3, 4]}}, "llalla"),
    ({"index_n_heads": 4, "sliding_window": 128}, "ssssss"),
    ({"model_type": "llama4_text", "attention_chunk_size": 128}, "sssfss"),  # its class: all but every fourth
    ({"model_type": "llama4_text", "attention_chunk_size": 128, "no_rope_layer_interval": 2}, "sfsfsf"),
    ({"model_type": "llama4_text", "attention_chunk_size": 128, "no_rope_layers": [1, 0, 0, 1, 1, 1]}, "sffsss"),
    ({"model_type": "llama4_text", "attention_chunk_size": 128, "no_rope_layers": []}, "sssfss"),
    ({"model_type": "llama4_text", "attention_chunk_size": None}, "ffffff"),
    ({"model_type": "smollm3", "no_rope_layer_interval": 2}, "ffffff"),
    ({"attention_chunk_size": 128}, "ffffff"),  # which layers is not known
])  # fmt: skip
def test_attention(keys: dict[str, Any], kinds: str) -> None:
    assert mixing(**keys) == kinds


def test_chunks_are_windows_that_do_not_move_and_only_they_have_positions() -> None:
    # Llama-4-Scout: transformers, models/llama4/configuration_llama4.py (layer_types) and modeling_llama4.py (use_rope)
    scout = {**BASE, "model_type": "llama4_text", "rope_theta": 500000.0, "num_experts": 16, "num_experts_per_tok": 1,
             "max_position_embeddings": 10485760}
    model = model_spec("scout", scout, TensorTable(files=(), groups=()))
    kind = model.attentions["sliding"]
    assert kind.window == 8192 and kind.chunked and not model.attentions["full"].chunked
    assert set(model.ropes) == {"sliding"}


def test_a_chunk_beside_a_window_is_the_window() -> None:
    # MiMo-V2-Flash states sliding_window and attention_chunk_size
    config = Config({**BASE, "sliding_window": 128, "attention_chunk_size": 128, "hybrid_layer_pattern": [0, 1] * 3})
    facts = language_facts(config)
    assert "chunk" not in facts and facts["window"] == 128
    assert not config.unclear


def test_a_layer_whose_tokens_are_chosen_is_sparse_unless_it_is_latent() -> None:
    config = Config({**BASE, "index_n_heads": 4, "index_head_dim": 8})
    assert set(attention_kinds(config, language_facts(config), {})) == {"sparse"}
    assert mixing(index_n_heads=4, kv_lora_rank=16) == "aaaaaa"


@pytest.mark.parametrize(("keys", "kinds"), [
    ({}, "eeeeee"),
    ({"first_k_dense_replace": 2}, "ddeeee"),
    ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "ddeded"),
    ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, "deedee"),
    ({"decoder_sparse_step": 2}, "dedede"),
    ({"interleave_moe_layer_step": 2}, "dedede"),
    ({"mlp_only_layers": [0, 5]}, "deeeed"),
    ({"moe_layers_enum": "1,2,3"}, "deeedd"),
    ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse", "dense"]}, "deeeed"),
    ({"moe_layer_start_index": 1, "moe_layer_end_index": 4}, "deeeed"),
    ({"num_experts": 0}, "dddddd"),
])  # fmt: skip
def test_feed_forward(keys: dict[str, Any], kinds: str) -> None:
    assert feeding(**keys) == kinds


def test_the_files_are_the_truth() -> None:
    shown = {0: frozenset({"linear", "dense"}), 1: frozenset({"latent", "experts"}),
             2: frozenset({"attention", "dense"})}  # fmt: skip
    assert mixing(shown, kv_lora_rank=16, **LINEAR) == "lafaaa"
    assert feeding(shown) == "dedeee"
    assert mixing(shown, sliding_window=128) == "lassss"


def test_layers_of_one_block_each() -> None:
    shown = {layer: frozenset({"linear"} if layer % 2 == 0 else {"experts"}) for layer in range(6)}
    assert mixing(shown, **LINEAR) == "lnlnln"
    assert feeding(shown) == "nenene"


@settings(deadline=None)
@given(st.integers(2, 40), st.data())
def test_the_base_follows_from_complete_lists(layers: int, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([0, 1]))
    full = data.draw(st.sets(st.integers(0, layers - 1), min_size=1, max_size=layers - 1))
    lists = [sorted(index + base for index in full), sorted(index + base for index in set(range(layers)) - full)]
    assert index_base(lists, layers)[0] == base


@settings(deadline=None)
@given(st.integers(3, 40), st.data())
def test_the_base_follows_from_the_files(layers: int, data: st.DataObject) -> None:
    """One incomplete list, against the layers that have such tensors; evidence decides unless it fits both ways."""
    base = data.draw(st.sampled_from([0, 1]))
    real = data.draw(st.sets(st.integers(1, layers - 2), min_size=1))
    stated = sorted(index + base for index in real)
    found, why = index_base([stated], layers, [frozenset(real)])
    assert found == base
    assert why.startswith("header")


def test_a_list_that_is_too_short_is_read_and_said() -> None:
    config = Config({"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 8,
                     "intermediate_size": 64, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3})
    assert attention_kinds(config, language_facts(config), {}) == ["sliding", "sliding", "sliding", "full"]
    assert config.unclear == ["layer_types: 3 entries for 4 layers (the others taken for full)"]


def test_periods_that_begin_at_a_layer() -> None:
    # ai21labs/Jamba-v0.1: attention in layers 4, 12, 20 and 28, experts in every second from 1 on
    state = {"mamba_d_state": 16, "mamba_expand": 2, "num_hidden_layers": 16}
    assert mixing(attn_layer_period=8, attn_layer_offset=4, **state) == "llllflll" * 2
    assert mixing(attn_layer_period=8, attn_layer_offset=0, **state) == "flllllll" * 2
    assert mixing(attn_layer_period=8, **state) == "lllllllf" * 2
    assert feeding(expert_layer_period=2, expert_layer_offset=1) == "dedede"
    assert feeding(expert_layer_period=2) == "ededed"
    with pytest.raises(ReleaseError, match="attn_layer_offset is -1, not a layer"):
        mixing(attn_layer_period=8, attn_layer_offset=-1, **state)
