"""The keys that the library's own code is seen to read while it builds a small model and runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support import tiny
from tests.support.config_release import GLM, Config, release

from dayzero.errors import NotPossible
from dayzero.schema import from_json, to_json
from dayzero.schema.consumption import Consumption
from dayzero.stages.read import read
from dayzero.stages.trace import consumption, coverage, ledgers

SMALL: Config = GLM | {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "kv_lora_rank": 16, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "index_n_heads": 2, "index_head_dim": 16, "max_position_embeddings": 256, "first_k_dense_replace": 1,
    "index_topk_freq": 2, "read_by_nobody": 7,
}  # fmt: skip
SMALL.pop("indexer_types")
PHI: Config = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 128,
    "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Consumption:
    return consumption(release(tmp_path_factory.mktemp("glm"), SMALL))


def test_what_the_models_modules_read(glm: Consumption) -> None:
    assert not glm.incomplete and not glm.impossible and "GlmMoeDsaForCausalLM" in glm.source
    for key in ("index_topk", "kv_lora_rank", "routed_scaling_factor", "rms_norm_eps", "hidden_act"):
        assert glm.reads[key][0].startswith("modeling_glm_moe_dsa.py:")


def test_what_nothing_reads_is_not_there(glm: Consumption) -> None:
    # huggingface/transformers#46842: the class rotates halves in the indexer, whatever the config says
    assert not glm.places("read_by_nobody") and not glm.places("indexer_rope_interleave")


def test_what_only_the_configuration_reads_to_derive_something_counts(glm: Consumption) -> None:
    assert glm.reads["index_topk_freq"][0].startswith("configuration_glm_moe_dsa.py:")
    assert glm.reads["first_k_dense_replace"][0].startswith("configuration_glm_moe_dsa.py:")


def test_other_names_of_a_key_are_read_with_it(glm: Consumption) -> None:
    assert glm.reads["n_routed_experts"] == glm.reads["num_local_experts"]  # the class maps one to the other


def test_rotary_keys_that_are_moved_to_a_table_are_read_with_it(tmp_path: Path) -> None:
    found = consumption(release(tmp_path, PHI))
    assert any(place.startswith("modeling_phi3.py:") for place in found.places("partial_rotary_factor"))
    assert found.places("rope_scaling.factor") == found.reads["rope_parameters"]


def test_keys_of_a_tower_are_not_those_of_the_language_model(tmp_path: Path) -> None:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default", "mrope_interleaved": True},
            "max_position_embeddings": 256, "model_type": "qwen3_vl_text", "rope_theta": 10000.0}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 64,
              "patch_size": 4, "deepstack_visual_indexes": [0], "model_type": "qwen3_vl"}
    found = consumption(release(tmp_path, {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text,
        "vision_config": vision}))
    assert found.reads["rms_norm_eps"] and not found.places("spatial_merge_size", "out_hidden_size")


def test_it_leaves_the_library_as_it_was(tmp_path: Path) -> None:
    from transformers import PreTrainedConfig

    before = PreTrainedConfig.__getattribute__
    consumption(release(tmp_path / "one", PHI))
    with pytest.raises(NotPossible, match="has no class for model_type"):
        consumption(release(tmp_path / "other", PHI | {"model_type": "unheard-of", "architectures": ["Unheard"]}))
    assert PreTrainedConfig.__getattribute__ is before


def test_both_ledgers_of_one_model(tmp_path: Path) -> None:
    model = read(tiny.experts(tmp_path / "model"), cache=tmp_path / "cache")
    consumed, covered = ledgers(model)
    assert covered == coverage(model) and consumed == consumption(model)
    assert from_json(to_json(consumed), Consumption) == consumed
    assert ledgers(release(tmp_path / "config", PHI))[1] is None
