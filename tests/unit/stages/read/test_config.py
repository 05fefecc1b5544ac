"""Configs as facts: spellings, nesting, sources, and what happens to values that make no sense."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import DayzeroError, ReleaseError
from dayzero.schema import TensorTable
from dayzero.stages.read.config import Config
from dayzero.stages.read.facts import language_facts
from dayzero.stages.read.spec import model_spec

NO_TENSORS = TensorTable(files=(), groups=())
DENSE: dict[str, Any] = {
    "architectures": ["SomeForCausalLM"], "model_type": "some", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {
    **DENSE, "n_routed_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip


def test_every_spelling_is_the_same_fact() -> None:
    other = {"n_embd": 64, "n_layer": 4, "n_head": 8, "num_kv_heads": 2, "n_inner": 128, "padded_vocab_size": 100}
    one, two = language_facts(Config(DENSE)), language_facts(Config(other))
    for name in ("hidden_size", "layers", "heads", "kv_heads", "dense_width", "vocab_size", "head_dim"):
        assert one[name] == two[name], name


def test_nested_tables_and_their_sources() -> None:
    nested = {"model_type": "outer", "vision_config": {"hidden_size": 7, "num_hidden_layers": 99},
              "text_config": {**EXPERTS, "linear_attn_config": {"num_heads": 6, "head_dim": 5}}}
    config = Config(nested)
    facts = language_facts(config)
    assert (facts["hidden_size"], facts["layers"], facts["linear_heads"], facts["linear_head_dim"]) == (64, 4, 6, 5)
    assert config.sources["hidden_size"] == "config.json: text_config.hidden_size"
    assert config.sources["linear_heads"] == "config.json: text_config.linear_attn_config.num_heads"
    assert config.text("model_type") == "outer"


def test_two_levels_of_nesting() -> None:
    config = Config({"thinker_config": {"text_config": DENSE}})
    assert language_facts(config)["layers"] == 4
    assert config.sources["layers"] == "config.json: thinker_config.text_config.num_hidden_layers"


def test_defaults_are_named_as_such() -> None:
    config = Config({key: value for key, value in DENSE.items() if key != "num_key_value_heads"})
    facts = language_facts(config)
    assert (facts["kv_heads"], facts["head_dim"]) == (8, 8)
    assert config.sources["kv_heads"].startswith("default") and config.sources["head_dim"].startswith("default")


def test_shared_experts_have_a_width_together() -> None:
    assert language_facts(Config(EXPERTS))["shared_width"] == 64
    stated = language_facts(Config({**EXPERTS, "shared_expert_intermediate_size": 48}))
    assert stated["shared_width"] == 48


@pytest.mark.parametrize(("key", "value"), [
    ("hidden_size", float("nan")), ("num_key_value_heads", float("inf")), ("tie_word_embeddings", float("nan")),
    ("hidden_size", "64"), ("hidden_size", -64), ("hidden_size", 0), ("hidden_size", True), ("hidden_size", 6.5),
    ("hidden_size", 10**30), ("num_hidden_layers", 10**9), ("num_attention_heads", [8]), ("tie_word_embeddings", "yes"),
    ("n_routed_experts", -1), ("kv_lora_rank", {"a": 1}), ("layer_types", 3),
    ("moe_layer_freq", "x"), ("mlp_only_layers", [1, "2"]), ("quantization_config", 3), ("architectures", "Some"),
    ("num_experts_per_token", 9),
])  # fmt: skip
def test_wrong_values_name_their_key(key: str, value: object) -> None:
    with pytest.raises(ReleaseError) as error:
        model_spec("some", {**EXPERTS, key: value}, NO_TENSORS)
    assert key in error.value.message or key == "num_experts_per_token"
    assert "\n" not in error.value.message + error.value.hint


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                                 "num_experts_per_token"])  # fmt: skip
def test_a_missing_key_is_named(key: str) -> None:
    config = {name: value for name, value in EXPERTS.items() if name != key}
    with pytest.raises(ReleaseError) as error:
        model_spec("some", config, NO_TENSORS)
    wanted = "num_experts_per_tok" if key == "num_experts_per_token" else key
    assert wanted in error.value.message


def test_a_config_that_is_not_an_object() -> None:
    with pytest.raises(ReleaseError, match="not a JSON object"):
        Config([1, 2])


def test_a_config_that_is_nested_beyond_reason() -> None:
    table: dict[str, Any] = {}
    for _ in range(5000):
        table = {"text_config": table}
    with pytest.raises(ReleaseError, match="inside tables"):
        Config(table)


def test_unknown_keys_are_listed_and_bookkeeping_is_not() -> None:
    config = {**DENSE, "residual_block_size": 12, "use_cache": True, "rope_theta": 1e4, "bos_token_id": 1,
              "vision_config": {"depth": 3}, "linear_attn_config": {"gate_upper_bound": -5.0}, "nothing": None}
    assert Config(config).unknown_keys() == ("residual_block_size", "linear_attn_config.gate_upper_bound")


WEIRD = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats(allow_nan=True) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6)
KEYS = sorted({*EXPERTS, "sliding_window", "layer_types", "sliding_window_pattern", "moe_layer_freq", "text_config",
               "decoder_sparse_step", "mlp_only_layers", "quantization_config", "linear_attn_config", "head_dim",
               "full_attention_layers", "sparse_attention_config", "mlp_layer_types", "index_n_heads"})  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), WEIRD, max_size=4))
def test_no_config_ends_in_a_traceback(changes: dict[str, Any]) -> None:
    config = {**copy.deepcopy(EXPERTS), **changes}
    try:
        spec = model_spec("some", config, NO_TENSORS)
    except DayzeroError as error:
        assert error.message and "\n" not in error.message
    else:
        assert len(spec.layers) > 0
