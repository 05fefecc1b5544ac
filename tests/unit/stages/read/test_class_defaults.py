"""What a config's class takes where the config is silent, and what counts before it."""

import pytest

from dayzero.errors import ReleaseError
from dayzero.schema import TensorTable
from dayzero.stages.read.config import Config
from dayzero.stages.read.spec import model_spec

NONE = TensorTable(files=(), groups=())


def test_a_silent_config_is_tied_where_its_class_ties() -> None:
    # bigscience/bloom config.json: 176,247,271,424 parameters with the head tied (its model card)
    bloom = {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880}
    spec = model_spec("bloom", bloom, NONE)
    assert spec.tied_embeddings
    assert spec.sources["tied"].startswith("default: tie_word_embeddings of model type bloom (transformers ")
    assert spec.parameters == pytest.approx(176_247_271_424, rel=1e-3)


def test_the_type_of_an_inner_table_follows_from_the_outer_one() -> None:
    # google/gemma-3-4b-it config.json: text_config states no heads and no vocabulary; its classes take 8, 4 and 262,208
    gemma = {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "num_hidden_layers": 34,
                                                     "intermediate_size": 10240, "sliding_window": 1024}}  # fmt: skip
    config = Config(gemma)
    assert (config.integer("heads"), config.integer("kv_heads"), config.integer("head_dim")) == (8, 4, 256)
    assert config.sources["heads"].startswith("default: num_attention_heads of model type gemma3_text")
    kinds = [layer.attention for layer in model_spec("gemma", gemma, NONE).layers]
    assert kinds[:6] == ["sliding"] * 5 + ["full"]


def test_null_is_a_statement() -> None:
    # mistralai/Mistral-7B-v0.3 states no window; MistralConfig has one of 4,096 by default
    assert Config({"model_type": "mistral", "sliding_window": None}).integer("window") is None
    assert Config({"model_type": "mistral"}).integer("window") == 4096


def test_a_statement_counts_before_any_default() -> None:
    assert Config({"model_type": "mistral", "num_key_value_heads": 2}).integer("kv_heads") == 2


def test_sizes_have_no_default() -> None:
    with pytest.raises(ReleaseError, match="num_hidden_layers"):
        model_spec("llama", {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}, NONE)


def test_what_is_built_into_a_class() -> None:
    # meta-llama/Llama-4-Scout-17B-16E-Instruct: every layer has a shared expert, of which its config says nothing
    scout = {"model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048,
        "tie_word_embeddings": False}}  # fmt: skip
    spec = model_spec("scout", scout, NONE)
    assert spec.parameters == pytest.approx(107_769_861_120, rel=1e-5)  # counted on the meta device
    assert spec.sources["shared_experts"] == (
        "default: built into model type llama4_text (transformers, models/llama4/modeling_llama4.py)")  # fmt: skip


def test_widths_for_each_layer() -> None:
    # google/gemma-3n-E4B-it states intermediate_size as a list
    config = Config({"intermediate_size": [16384] * 30 + [8192] * 5})
    assert config.integer("dense_width") == 16384
    assert config.unclear == ["intermediate_size: 2 values (taken as 16384)"]


def test_the_outermost_table_says_whether_the_head_is_tied() -> None:
    config = Config({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}})
    assert config.flag("tied") is True
    assert config.sources["tied"] == "config.json: tie_word_embeddings"


def test_an_estimate_of_other_blocks_is_said_to_be_rough() -> None:
    # LiquidAI/LFM2-1.2B: most layers are short convolutions
    lfm = {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
    assert "estimate: the blocks of model type lfm2 are not the standard ones; sizes are rough" in (
        model_spec("lfm2", lfm, NONE).unknowns)  # fmt: skip


def test_a_gate_where_the_activation_usually_comes_without() -> None:
    # microsoft/bitnet-b1.58-2B-4T and nvidia/Nemotron-4-340B: relu2 with a gate, and without
    relu2 = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 10,
             "intermediate_size": 100, "hidden_act": "relu2"}  # fmt: skip
    gated, plain = (model_spec("some", {**relu2, "model_type": kind}, NONE) for kind in ("bitnet", "nemotron"))
    assert "mlp.gate" in {family.role for family in gated.families}
    assert "mlp.gate" not in {family.role for family in plain.families}


def test_layers_that_are_listed_and_not_counted() -> None:
    # nvidia/Nemotron-H-8B-Base-8K saved by transformers 5: layers_block_type, and no num_hidden_layers
    listed = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10,
              "layers_block_type": ["mamba", "attention"]}  # fmt: skip
    assert [layer.attention for layer in model_spec("some", listed, NONE).layers] == ["linear", "full"]
    with pytest.raises(ReleaseError, match="num_hidden_layers"):
        model_spec("some", {**listed, "layers_block_type": ["mamba"] * 100_001}, NONE)
