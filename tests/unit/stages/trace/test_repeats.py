"""Leaving out what others did changes no row: on real architectures of the library, and on modules made to break it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from dayzero.schema import FeedForward
from dayzero.stages.trace import rows
from dayzero.stages.trace.capture import Recorder
from dayzero.stages.trace.captured import Captured
from dayzero.stages.trace.construct import quiet
from dayzero.stages.trace.runs import Runs
from dayzero.stages.trace.step import Step

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 120,
    "moe_intermediate_size": 32, "max_position_embeddings": 256, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                          "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4}
ROUTED: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                          "n_shared_experts": 1, "num_experts": 8, "num_local_experts": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**LATENT, **ROUTED, "num_hidden_layers": 6, "first_k_dense_replace": 2},
    "gpt_oss": {**ROUTED, "num_hidden_layers": 6, "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 3},
    "qwen3_next": {**ROUTED, "num_hidden_layers": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
    "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16,
                    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
    "longcat_flash": {**LATENT, **ROUTED, "num_layers": 4, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32,
                      "zero_expert_num": 4, "moe_topk": 2, "num_hidden_layers": 8},
    "kimi_linear": {**LATENT, **ROUTED, "num_hidden_layers": 8, "first_k_dense_replace": 1},
    "llama4_text": {**ROUTED, "num_hidden_layers": 8, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96,
                    "attention_chunk_size": 16},
    "deepseek_v4": {**ROUTED, "num_hidden_layers": 6, "q_lora_rank": 24, "num_key_value_heads": 1},
    "minimax_m2": {**ROUTED, "num_hidden_layers": 5},
}  # fmt: skip


def build(name: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with quiet():
        config = CONFIG_MAPPING[name](**{**SMALL, **ARCHITECTURES[name]})
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def counted(captured: Captured, recorder: Recorder) -> Counter[Any]:
    """Rows without their order; all numbers of a path but the layer's are one."""
    found: Counter[Any] = Counter()
    for row in rows.operators(captured, recorder.types, lambda path: path):
        layer, _, rest = row.module.partition(".layers.")[2].partition(".")
        rest = ".".join("*" if part.isdigit() else part for part in rest.split("."))
        found[row.op, layer, rest or row.module, row.kind, row.inputs, row.outputs, row.dtype, row.phase] += row.count
        found["flops"] += row.flops
        found["bytes"] += row.bytes
    return found


class Spec:
    """What Runs asks of a ModelSpec."""

    feed_forwards = {"experts": FeedForward(kind="experts", width=32, input_width=64, experts=8, top_k=2)}


def both(model: torch.nn.Module, steps: list[Step]) -> tuple[list[Captured], Runs, list[Captured], Runs]:
    with quiet():
        quick, full = Runs(model, Spec()), Runs(model, Spec(), repeats=False)  # type: ignore[arg-type]
        return [quick.run(step) for step in steps], quick, [full.run(step) for step in steps], full


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_are_those_of_a_full_run(name: str, implementation: str) -> None:
    model = build(name)
    if implementation == "eager":
        try:
            model.set_experts_implementation("eager")  # type: ignore[operator]
        except (ValueError, AttributeError):
            pytest.skip("the class has one implementation")
    steps = [Step("prefill", 2, 21), Step("decode", 2, 1, 21), Step("decode", 1, 1, 5)]
    quick, runs, full, all_runs = both(model, steps)
    assert not runs._full, "something that was left out had to run after all"
    for one, other in zip(quick, full, strict=True):
        assert len(one.calls) < len(other.calls) and one.repeats and not other.repeats
        assert counted(one, runs.recorder) == counted(other, all_runs.recorder)
    assert runs.sites() == all_runs.sites()
    assert runs.missing() == all_runs.missing()
