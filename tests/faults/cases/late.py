"""Faults that were planted when the judges had been written."""

from __future__ import annotations

from typing import Any

import torch
from tests.faults.cases.several import stale
from tests.faults.fault import Fault, code, layers, weights
from tests.faults.work import Meddling

_ATTENTION = r"model\.layers\.\d\.self_attn"


def _keys_values(model: Any) -> None:
    attention = layers(model)[2].self_attn
    attention.k_proj.weight, attention.v_proj.weight = attention.v_proj.weight, attention.k_proj.weight


def _first_block(cache: Any) -> None:
    """The first block of the prompt is taken from a prompt that begins otherwise."""
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            states[:, :, :4] = states[:, :, 4:8].clone()


def _one_full(model: Any) -> None:
    kinds = list(model.config.layer_types)
    kinds[2] = "full_attention"
    model.config.layer_types = kinds


def _two_scales(weight: torch.Tensor) -> torch.Tensor:
    """Two experts' scales exchanged, of which one is half as large."""
    weight[1] *= 2
    weight[4] /= 2
    return weight


FAULTS = (
    Fault(
        "keys and values exchanged",
        "llama",
        (r"model\.layers\.2\.self_attn\.(k|v)_proj",),
        "swap|exchang",
        _keys_values,
        "linear",
    ),
    Fault(
        "dropout left on",
        "llama",
        (_ATTENTION,),
        "dropout|random|training",
        code(_ATTENTION, eager_attention_forward=("p=dropout, training=module.training", "p=0.1, training=True")),
        "attention",
    ),
    Fault(
        "weights of chosen experts in the other order",
        "qwen3_moe",
        (r"model\.layers\.\d\.mlp\.gate",),
        "order|permut|swap|exchang|revers",
        code(
            r"model\.layers\.\d\.mlp\.gate",
            forward=("router_scores = router_top_value\n", "router_scores = router_top_value.flip(-1)\n"),
        ),
        "router",
    ),
    Fault(
        "queries' parts split in the other order",
        "deepseek_v3",
        (_ATTENTION,),
        "rotar|rope|order|split",
        code(
            _ATTENTION,
            forward=(
                "q_pass, q_rot = torch.split(q_states, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)",
                "q_rot, q_pass = torch.split(q_states, [self.qk_rope_head_dim, self.qk_nope_head_dim], dim=-1)",
            ),
        ),
        "attention",
    ),
    Fault(
        "sinks of other heads",
        "gpt_oss",
        (r"model\.layers\.1\.self_attn",),
        "sink|entries shifted",
        weights("model.layers.1.self_attn.sinks", lambda sinks: sinks.roll(1)),
        "attention",
    ),
    Fault(
        "norm after the residual",
        "gemma2",
        (r"model\.layers\.\d",),
        "residual|order",
        code(
            r"model\.layers\.\d",
            forward=(
                "self.post_attention_layernorm(hidden_states)\n    hidden_states = residual + hidden_states",
                "self.post_attention_layernorm(residual + hidden_states)",
            ),
        ),
        "layer",
    ),
    Fault(
        "linear heads repeated in the wrong order",
        "qwen3_next",
        (r"model\.layers\.[02]\.linear_attn",),
        "heads (are|have)|replicat|order|repeat",
        code(
            r"model\.layers\.[02]\.linear_attn",
            torch_chunk_gated_delta_rule=(),
            torch_recurrent_gated_delta_rule=(
                (
                    "query = query.repeat_interleave(num_v_heads // num_k_heads, dim=2)",
                    "query = query.repeat(1, 1, num_v_heads // num_k_heads, 1)",
                ),
                (
                    "key = key.repeat_interleave(num_v_heads // num_k_heads, dim=2)",
                    "key = key.repeat(1, 1, num_v_heads // num_k_heads, 1)",
                ),
            ),
        ),
        "state",
    ),
    Fault(
        "gate of the delta layers' norm",
        "kimi_linear",
        (r"model\.layers\.[02]\.self_attn\.o_norm",),
        "gate|sigmoid|silu",
        code(
            r"model\.layers\.[02]\.self_attn\.o_norm",
            forward=("ACT2FN[self.activation](gate.to(torch.float32))", 'ACT2FN["silu"](gate.to(torch.float32))'),
        ),
        "norm",
    ),
    Fault(
        "bias of the indexer's norm dropped",
        "glm_moe_dsa",
        (r"model\.layers\.1\.self_attn\.indexer\.k_norm",),
        "bias",
        weights("model.layers.1.self_attn.indexer.k_norm.bias", torch.zeros_like),
        "norm",
    ),
    Fault(
        "second rank's vocabulary stale",
        "llama",
        (r"lm_head",),
        "rank|shard|stale",
        operator="head",
        layout="tp=2",
        ranks=stale("lm_head.weight", 0.05),
    ),
    Fault(
        "first block of another prompt",
        "llama",
        (_ATTENTION,),
        "cache|from position|blocks of",
        operator="cache",
        meddling=Meddling(filled=_first_block),
    ),
    Fault(
        "one layer without its window",
        "gemma3",
        (r"model\.layers\.2\.self_attn", r"model\.layers\.2"),
        "window|sliding|layer_types",
        _one_full,
        "attention",
    ),
    Fault(
        "scales of two experts exchanged",
        "deepseek_v3",
        (r"model\.layers\.3\.mlp\.experts",),
        r"experts? .*\b[14]\b",
        weights("model.layers.3.mlp.experts.down_proj", _two_scales),
        "experts",
    ),
    Fault(
        "router's softmax in f16",
        "qwen3_moe",
        (r"model\.layers\.\d\.mlp\.gate",),
        "round|precision|f16|bf16",
        code(
            r"model\.layers\.\d\.mlp\.gate",
            forward=("dtype=torch.float, dim=-1)", "dtype=torch.float, dim=-1).half().float()"),
        ),
        "router",
        precision="f32",
    ),
)
