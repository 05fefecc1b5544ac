"""Twins of releases that have only a config: names from the library's class, loaded and run by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import twins

from dayzero.stages.read import read
from dayzero.stages.twin import twin

pytest.importorskip("torch")
pytest.importorskip("transformers")

MOE: dict[str, Any] = {  # Qwen3-Next-80B-A3B-Instruct, its layers and experts
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120,
    "vocab_size": 151936, "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "eos_token_id": 151645, "bos_token_id": 151643, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
STACKED: dict[str, Any] = {  # gpt-oss-120b
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
    "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "attention_bias": True, "rope_theta": 150000,
    "eos_token_id": 200002, "pad_token_id": 199999, "tie_word_embeddings": False, "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
                            "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
TOWER: dict[str, Any] = {  # Qwen3-VL-2B-Instruct
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 151655,
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
                    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936,
                    "rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default"}, "eos_token_id": 151645},
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
                      "out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17], "spatial_merge_size": 2,
                      "num_position_embeddings": 2304, "temporal_patch_size": 2, "in_channels": 3},
    "tie_word_embeddings": True,
}  # fmt: skip

UNSTATED: dict[str, Any] = {  # Llama-4-Scout-17B-16E-Instruct as it is often mirrored: without its vision tower
    "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "boi_token_index": 200080,
    "text_config": {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "head_dim": 128,
                    "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
                    "num_key_value_heads": 8, "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1,
                    "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "eos_token_id": 200001},
}  # fmt: skip


def made(config: dict[str, Any], folder: Path) -> Any:
    (folder / "r").mkdir()
    (folder / "r" / "config.json").write_text(json.dumps(config))
    return twin(read(folder / "r"), folder / "t")


@pytest.mark.slow
@pytest.mark.parametrize("config", [MOE, STACKED, TOWER], ids=["linear", "stacked", "tower"])
@pytest.mark.filterwarnings("ignore")
def test_the_library_loads_every_tensor_and_generates(config: dict[str, Any], tmp_path: Path) -> None:
    import torch
    import transformers
    from transformers import AutoTokenizer

    summary = made(config, tmp_path)
    assert summary.names.startswith("library: ")
    library = getattr(transformers, config["architectures"][0])
    model, info = library.from_pretrained(tmp_path / "t", dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info.values())
    ids = AutoTokenizer.from_pretrained(tmp_path / "t")("Hello", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float()
        out = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    assert torch.isfinite(logits).all()
    assert 0.5 < logits.std() < 3
    assert out.shape[1] > ids.shape[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_stacked_experts_are_stored_in_blocks(tmp_path: Path) -> None:
    made(STACKED, tmp_path)
    stored = twins.stored(tmp_path / "t")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert stored[f"{name}_blocks"][1].shape == (8, 640, 10, 16)
    assert stored[f"{name}_scales"][1].shape == (8, 640, 10)
    assert stored[f"{name}_bias"][1].shape == (8, 640)
    assert abs(twins.matrices(stored)[name].std() * 320**0.5 - 1) < 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_tower_keeps_the_layers_that_lists_name(tmp_path: Path) -> None:
    summary = made(TOWER, tmp_path)
    vision = json.loads((tmp_path / "t" / "config.json").read_text())["vision_config"]
    assert (vision["depth"], vision["deepstack_visual_indexes"]) == (5, [2, 3, 4])
    assert vision["hidden_size"] % vision["num_heads"] == 0
    assert vision["out_hidden_size"] == 256
    assert any(one.fact == "vision_config.depth" and one.twin == 5 for one in summary.numbers)


def test_a_model_that_the_library_does_not_know_has_estimated_names(tmp_path: Path) -> None:
    plain = {key: value for key, value in STACKED.items() if key not in ("quantization_config", "layer_types")}
    summary = made({**plain, "model_type": "nobody_knows", "architectures": ["Nobody"]}, tmp_path)
    assert summary.names == "estimate"
    assert any("the library knows no model type" in note for note in summary.notes)
    assert read(tmp_path / "t").model.layers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_tower_that_the_config_does_not_state(tmp_path: Path) -> None:
    import transformers

    summary = made(UNSTATED, tmp_path)
    config, names = json.loads((tmp_path / "t" / "config.json").read_text()), twins.stored(tmp_path / "t").keys()
    assert summary.names == "library: Llama4ForConditionalGeneration"
    assert config["vision_config"]["num_hidden_layers"] == 2
    assert "language_model.model.layers.0.self_attn.q_proj.weight" in names
    assert any(name.startswith("vision_model.") for name in names)
    assert any(note.startswith("vision_config: not in the config") for note in summary.notes)
    _, info = transformers.Llama4ForConditionalGeneration.from_pretrained(tmp_path / "t", output_loading_info=True)
    assert not any(info.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_prediction_layers_that_nothing_tells_of_are_not_stated(tmp_path: Path) -> None:
    said = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                                    "ignore": ["lm_head", "mtp.layers.0*"]}}
    summary = made({**MOE, **said, "num_nextn_predict_layers": 1}, tmp_path)
    config = json.loads((tmp_path / "t" / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 0 and config["quantization_config"]["ignore"] == ["lm_head"]
    assert any("num_nextn_predict_layers is 0" in note for note in summary.notes)
    assert next(one.twin for one in summary.numbers if one.fact == "mtp_layers") == 0
