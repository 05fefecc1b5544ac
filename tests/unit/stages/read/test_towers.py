"""Vision towers of releases of which only the config is there, beside what is published of them."""

from typing import Any

import pytest

from dayzero.schema import ModelSpec, TensorTable
from dayzero.stages.read.spec import model_spec

TEXT: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32, "vocab_size": 100}
# Qwen/Qwen3-VL-8B-Instruct config.json
VISION: dict[str, Any] = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
    "temporal_patch_size": 2, "num_position_embeddings": 2304, "spatial_merge_size": 2, "out_hidden_size": 4096,
    "deepstack_visual_indexes": [8, 16, 24], "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip


def spec(vision: object, key: str = "vision_config") -> ModelSpec:
    return model_spec("some", {"text_config": TEXT, key: vision}, TensorTable(files=(), groups=()))


def tower(model: ModelSpec) -> int:
    return model.parameters - model.parameters_text


def test_a_tower_with_mergers_for_several_layers() -> None:
    # model.visual of Qwen/Qwen3-VL-8B-Instruct, as transformers builds it on the meta device
    assert tower(spec(VISION)) == 576_388_336
    assert {family.role for family in spec(VISION).families if "visual" in family.pattern} == {"vision"}


def test_keys_and_lists_of_another_spelling() -> None:
    # moonshotai/Kimi-K2.5 config.json; 1,026.879 B with the tower and 1,026.408 B without
    vision = {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304, "patch_size": 14,
              "merge_kernel_size": [2, 2], "init_pos_emb_height": 64, "init_pos_emb_width": 64,
              "text_hidden_size": 7168}  # fmt: skip
    assert tower(spec(vision)) == pytest.approx(0.471e9, rel=5e-3)


def test_a_tower_whose_blocks_have_a_gate() -> None:
    # mistralai/Mistral-Large-3-675B-Instruct-2512 params.json; 2.5 B (its card)
    vision = {"hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48, "patch_size": 14,
              "spatial_merge_size": 2, "num_channels": 3}  # fmt: skip
    assert tower(spec(vision, "vision_encoder")) == pytest.approx(2.56e9, rel=0.01)


@pytest.mark.parametrize("wrong", [{"depth": None}, {"hidden_size": -1}, {"patch_size": [14, 16]}, {"depth": 10**9},
                                   {"model_type": "glm4v_vision"}])  # fmt: skip
def test_what_is_not_described_enough_is_left_out_and_said(wrong: dict[str, Any]) -> None:
    model = spec({**VISION, **wrong})
    assert tower(model) == 0
    assert "estimate: what vision_config describes is left out" in model.unknowns
