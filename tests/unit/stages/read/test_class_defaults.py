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
