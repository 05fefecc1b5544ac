"""Towers of models that take more than text, beside the text path."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from dayzero.data.tower_inputs import tower_inputs
from dayzero.schema import OpGraph
from dayzero.stages.trace import to_contract, trace
from dayzero.stages.trace.capture.towers import _numbers

TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
VISION: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": 28, "patch_size": 7, "num_channels": 3, "projection_dim": 16,
}  # fmt: skip
SEEING: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": TEXT, "dtype": "bfloat16",
    "vision_config": VISION, "num_hidden_layers": 2, "vision_feature_layer": -2, "image_token_index": 99,
}  # fmt: skip
PATCHES = 16  # (28 / 7)^2


def flops(graph: OpGraph, *kinds: str) -> int:
    return sum(call.flops for call in graph.operators if call.phase == "towers" and call.kind in kinds)


@pytest.mark.filterwarnings("ignore")
def test_a_tower_runs_on_one_image_beside_the_text(make) -> None:
    plain, graph = (trace(make(SEEING), tokens=9, context=6, towers=asked) for asked in (False, True))
    assert set(plain.phases) == {"prefill", "decode"} and graph.phases["towers"].tokens == PATCHES
    assert {name: graph.phases[name] for name in plain.phases} == plain.phases and not graph.missing
    # 3 layers on 16 patches and a class token: 4 matrices of 32 x 32, 2 of 32 x 64; the projector on the patches alone.
    layer = 4 * 32 * 32 + 2 * 32 * 64
    assert flops(graph, "linear") == 2 * 17 * 3 * layer + 2 * PATCHES * (32 * 48 + 48 * 48)
    assert flops(graph, "conv") == 2 * PATCHES * 3 * 7 * 7 * 32
    assert flops(graph, "attention", "matmul") == 3 * 2 * 4 * 17 * 17 * (8 + 8)
    assert "get_image_features on 1x3x28x28" in graph.source
    assert to_contract(graph)["parameters_text"] == to_contract(plain)["parameters_text"]


@pytest.mark.filterwarnings("ignore")
def test_operations_of_towers_depend_on_no_workload(make) -> None:
    graph = trace(make(SEEING), tokens=PATCHES, context=6, towers=True)
    own = [one for one in graph.operations if one.phase == "towers"]
    assert own and not any(one.layers for one in own)
    assert all(not isinstance(length, str) for one in own for length in one.axes.values())
    assert sum(one.counted_flops for one in own) == graph.phases["towers"].flops


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_run_is_missing(make, monkeypatch) -> None:
    from transformers import LlavaForConditionalGeneration

    def broken(self: Any, pixel_values: Any) -> Any:
        raise ValueError("no eyes")

    monkeypatch.setattr(LlavaForConditionalGeneration, "get_image_features", broken)
    graph = trace(make(SEEING), tokens=9, context=6, towers=True)
    assert any("get_image_features: no eyes" in entry for entry in graph.missing)
    assert graph.phases["towers"].flops  # its modules are called one by one


@pytest.mark.filterwarnings("ignore")
def test_a_text_model_has_none(make, configs) -> None:
    graph = trace(make(configs["dense"]), tokens=9, context=6, towers=True)
    assert set(graph.phases) == {"prefill", "decode"} and not graph.missing and "no tower ran" in graph.source


def test_numbers_of_configs() -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"patch_size": [14, 14], "num_position_embeddings": 2304, "flag": True, "none": None, "zero": 0}

    assert _numbers([Config()]) == {"patch_size": 14, "root_patch_size": 3, "num_position_embeddings": 2304,
                                    "root_num_position_embeddings": 48}
    assert all(way.tensors for way in tower_inputs().ways)
