"""The quantisation that a config, or a file beside it, states: formats, sizes of groups, what stays plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dayzero.errors import ReleaseError
from dayzero.schema import ModelSpec, TensorTable
from dayzero.stages.read import read
from dayzero.stages.read.spec import model_spec
from dayzero.stages.read.stated import quantised

CONFIG: dict[str, Any] = {
    "model_type": "some", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 100,
    "intermediate_size": 1024, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
# What producers of NVFP4 releases write next to config.json, the exclusions layer by layer.
BESIDE = {"producer": {"name": "some"}, "quantization": {
    "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": [
        "lm_head", "model.layers.0.self_attn.q_proj", "model.language_model.layers.1.mlp*", "mtp.layers.2.mlp*"]}}


def release(root: Path, config: dict[str, Any], beside: object) -> ModelSpec:
    (root / "config.json").write_text(json.dumps(config))
    (root / "hf_quant_config.json").write_text(json.dumps(beside))
    return read(root, metadata_only=True).model


def of(model: ModelSpec, name: str, scheme: str) -> set[int]:
    """Layers in which the weight with that name has the scheme."""
    return {layer for family in model.families for layer in family.layers
            if name in family.pattern and family.parameters and family.scheme == scheme}  # fmt: skip


def test_a_file_beside_the_config_states_the_quantisation(tmp_path: Path) -> None:
    model = release(tmp_path, CONFIG, BESIDE)
    assert model.sources["quantization"] == "hf_quant_config.json: quantization"
    assert (of(model, "q_proj", "nvfp4"), of(model, "q_proj", "bf16")) == ({1, 2, 3}, {0})
    assert (of(model, "up_proj", "nvfp4"), of(model, "up_proj", "bf16")) == ({0, 2, 3}, {1})
    assert of(model, "o_proj", "nvfp4") == {0, 1, 2, 3}
    scales = next(family for family in model.families if family.pattern.endswith("up_proj.weight_scale"))
    assert scales.shape == (1024, 512 // 16)


def test_the_config_counts_before_a_file_beside_it(tmp_path: Path) -> None:
    model = release(tmp_path, {**CONFIG, "quantization_config": {"quant_method": "fp8"}}, BESIDE)
    assert of(model, "q_proj", "fp8") == {0, 1, 2, 3}
    assert model.sources["quantization"] == "config.json: quantization_config"


@pytest.mark.parametrize("beside", [[], {"quantization": 4}])
def test_a_file_beside_the_config_that_makes_no_sense(tmp_path: Path, beside: object) -> None:
    with pytest.raises(ReleaseError, match="hf_quant_config"):
        release(tmp_path, CONFIG, beside)


@pytest.mark.parametrize(("quantization", "end", "shape"), [
    ({"quant_method": "fp8", "weight_block_size": [64, 32]}, "weight_scale_inv", (16, 16)),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv", (8, 4)),
    ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "scales", (8, 1024)),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "scales", (1, 1024)),
    ({"quant_method": "awq", "bits": 4}, "scales", (4, 1024)),
    ({"format": "pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 128}}}},
     "weight_scale", (1024, 4)),
    ({"format": "pack-quantized", "config_groups": {"g": {"weights": {
        "num_bits": 4, "group_size": None, "strategy": "channel"}}}}, "weight_scale", (1024, 1)),
])  # fmt: skip
def test_scales_have_the_size_that_the_config_states(quantization: dict[str, Any], end: str,
                                                     shape: tuple[int, int]) -> None:
    model = model_spec("some", {**CONFIG, "quantization_config": quantization}, TensorTable(files=(), groups=()))
    scales = next(family for family in model.families if family.pattern.endswith(f"up_proj.{end}"))
    assert scales.shape == shape


def test_names_match_a_module_or_its_parents_and_not_another_that_begins_alike() -> None:
    stated = quantised({"quant_method": "fp8", "ignore": ["model.layers.1.mlp", "lm_head", "re:.*layers\\.3\\..*"]}, [])
    assert stated.leaves_plain("model.layers.1.mlp.up_proj") and stated.leaves_plain("lm_head")
    assert stated.leaves_plain("model.layers.3.self_attn.q_proj")
    assert not stated.leaves_plain("model.layers.10.mlp.up_proj")
    parts = quantised({"quant_method": "fp8", "ignore": ["self_attn", "moe.gate"]}, [])
    assert parts.leaves_plain("model.layers.3.self_attn.q_proj") and parts.leaves_plain("model.layers.3.moe.gate")
    assert not parts.leaves_plain("model.layers.3.mlp.gate")
