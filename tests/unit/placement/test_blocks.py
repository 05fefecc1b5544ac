"""Shares of quantised attention weights, and sizes of vision towers, against the ranks of a layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import KIMI, release

from dayzero.data import engine
from dayzero.data.engines import resolve_engine
from dayzero.placement import findings, valid_tp
from dayzero.placement.keys import config_key
from dayzero.schema import Engine, Layout, ModelSpec
from dayzero.schema.target import EngineRequest

ANY = engine("any")
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
K2: dict[str, Any] = {  # moonshotai/Kimi-K2-Instruct: 64 heads of 192, expanded from 1536
    "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 4, "num_attention_heads": 64,
    "vocab_size": 163840, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "quantization_config": FP8,
}  # fmt: skip
QWEN: dict[str, Any] = {  # Qwen/Qwen2.5-0.5B-Instruct-AWQ: 14 heads of 64, groups of 128
    "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "vocab_size": 151936,
    "num_key_value_heads": 2, "intermediate_size": 4864, "hidden_act": "silu", "tie_word_embeddings": True,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
}  # fmt: skip
K3: dict[str, Any] = {  # moonshotai/Kimi-K3's tower beside a small language model
    "text_config": {**KIMI, "num_attention_heads": 96}, "model_type": "kimi_k3",
    "vision_config": {"vt_hidden_size": 1024, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4096,
                      "patch_size": 14, "vt_num_attention_heads": 12},
}  # fmt: skip


def of(tmp_path: Path, config: dict[str, Any]) -> ModelSpec:
    return release(tmp_path / "release", config).model


def found(model: ModelSpec, layout: Layout, on: Engine = ANY) -> dict[tuple[str, str], tuple[str, Any]]:
    """(rule, subject) -> (severity, local share, or value)."""
    return {(one.rule, one.subject): (one.severity, one.facts.get("local", one.facts["value" if "value" in one.facts
            else "local"])) for one in findings(model, layout, on)}  # fmt: skip


def test_one_head_of_192_is_one_and_a_half_blocks(tmp_path: Path) -> None:
    model = of(tmp_path, K2)
    key = ("shard-quant-block", "num_attention_heads")
    assert found(model, Layout(tp=64, ep=64))[key] == ("error", 192)
    assert key not in found(model, Layout(tp=32, ep=32))  # two heads are three blocks
    assert key not in found(model, Layout(tp=64, ep=64, attention_tp=32))
    padded = resolve_engine(EngineRequest(block_padding=True))
    assert found(model, Layout(tp=64, ep=64), padded)[key] == ("warning", 192)


def test_a_key_value_head_of_half_a_block(tmp_path: Path) -> None:
    # heads of Llama-3.2-1B: 32 and 8 of 64; two key/value heads are one block
    model = of(tmp_path, {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32,
                          "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
                          "quantization_config": FP8})  # fmt: skip
    assert found(model, Layout(tp=8)) == {("shard-quant-block", "num_key_value_heads"): ("error", 64)}
    assert not found(model, Layout(tp=4))


def test_key_value_heads_of_more_than_a_block_are_left_to_the_loader(tmp_path: Path) -> None:
    # heads of MiMo-V2-Flash: 4 keys of 192 on four ranks; engines load it so (vllm-project/vllm#45200)
    model = of(tmp_path, {"model_type": "x", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 64,
                          "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384,
                          "vocab_size": 152576, "quantization_config": FP8})  # fmt: skip
    assert not found(model, Layout(tp=4))


def test_packed_groups_of_an_output_projection(tmp_path: Path) -> None:
    model = of(tmp_path, QWEN)
    assert found(model, Layout(tp=2))["shard-quant-block", "num_attention_heads"] == ("error", 448)
    assert ("shard-quant-block", "num_attention_heads") not in found(model, Layout(tp=1))
    plain = of(tmp_path, {**QWEN, "quantization_config": None})
    assert not found(plain, Layout(tp=2))


@pytest.mark.parametrize(("tp", "broken"), [(16, {"shard-heads": 12}), (24, {"shard-heads": 12, "shard-width": 4096}),
                                            (4, {})])
def test_a_tower_that_is_cut(tmp_path: Path, tp: int, broken: dict[str, int]) -> None:
    model = of(tmp_path, K3)
    keys = {"shard-heads": "vision_config.vt_num_attention_heads", "shard-width": "vision_config.vt_intermediate_size"}
    cut = found(model, Layout(tp=tp), resolve_engine(EngineRequest(vision="split")))
    assert {rule: cut[rule, key][1] for rule, key in keys.items() if (rule, key) in cut} == broken
    assert not any(key.startswith("vision") for _, key in found(model, Layout(tp=tp)))


def test_degrees_of_a_tower_that_is_cut(tmp_path: Path) -> None:
    config = {**K3, "vision_config": {**K3["vision_config"], "vt_num_attention_heads": 2}}
    model = of(tmp_path, config)
    assert valid_tp(model, ANY, 8) == [1, 2, 4, 8]
    assert valid_tp(model, resolve_engine(EngineRequest(vision="split")), 8) == [1, 2]


def test_keys_are_dotted_from_the_language_model_on(tmp_path: Path) -> None:
    model = of(tmp_path, K3)
    assert config_key(model, "heads") == "num_attention_heads"
    assert config_key(model, "linear_heads") == "linear_attn_config.num_heads"
