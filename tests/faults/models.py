"""Nine small architectures as real release folders: the library's classes, random weights of the scale that trained
ones have, the same for the same seed. Every limit (window, index top-k, group, clamp) is within reach of the prompts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_BASE = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
         "pad_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
         "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
_LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
           "v_head_dim": 16}  # fmt: skip
_GROUPED = {"moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5, "norm_topk_prob": True}  # fmt: skip
_RECURRENT = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
_WINDOWED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 500000.0}},
    "qwen3_moe": {"num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8,
                  "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": [0]},
    "deepseek_v3": _LATENT | _GROUPED | {"q_lora_rank": 48, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
                                         "num_mtp_layers": 0, "rope_interleave": True,
                                         "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "gpt_oss": {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "num_local_experts": 8,
                "num_experts_per_tok": 2, "sliding_window": 12, "layer_types": _WINDOWED, "swiglu_limit": 1.5,
                "rope_parameters": _YARN | {"truncate": False}},
    "qwen3_next": {"num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, "moe_intermediate_size": 32,
                   "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
                   "norm_topk_prob": True, "layer_types": _RECURRENT,
                   "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12, "layer_types": _WINDOWED,
               "query_pre_attn_scalar": 24, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0,
               "tie_word_embeddings": True},
    "gemma3": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12, "layer_types": _WINDOWED,
               "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "kimi_linear": _LATENT | _GROUPED | {"num_experts": 8, "n_group": 1, "topk_group": 1, "linear_head_dim": 16,
                                         "linear_num_heads": 4, "layer_types": _RECURRENT},
    "glm_moe_dsa": _LATENT | _GROUPED | {"q_lora_rank": 48, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
                                         "index_topk": 12, "index_head_dim": 16, "index_n_heads": 16},
}  # fmt: skip
"""What differs from the base, by the library's name of the architecture (`gemma3`: its text model)."""
_KINDS = {"gemma3": "gemma3_text"}
_EMBEDDING = {"llama": 0.02, "gemma2": 0.125, "gemma3": 0.125}
"""Spread of the embedding's values where it is not 1: a trained LLaMA's is small beside its norms' epsilon, Gemma's is
multiplied by the root of the width."""


def write(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """The release folder, weights in bf16 but for what routers keep in f32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(_KINDS.get(kind, kind), **_BASE | CONFIGS[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        _fill(model, _EMBEDDING.get(kind, 1.0))
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str = "f32", *, attention: str = "eager", experts: str = "eager",
         gradients: bool = False) -> Any:
    """The model of a folder; `dtype`: f32, bf16 or f16."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=TORCH[dtype], attn_implementation=attention,
                                                 experts_implementation=experts)
    return model.eval().requires_grad_(gradients)


TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def _fill(model: Any, embedding: float) -> None:
    """Random weights, in bf16 but for routers' and decays'; equal ones get a spread around what they are."""
    values = dict(model.named_parameters()) | {name: each for name, each in model.named_buffers() if "bias" in name}
    for name, value in values.items():
        kept = _spread(name, value, embedding)
        strict = name.endswith(("e_score_correction_bias", "A_log", "dt_bias", "mlp.gate.weight"))
        with torch.no_grad():
            value.copy_(kept)
            if not strict:
                value.data = value.data.to(torch.bfloat16)


def _spread(name: str, value: torch.Tensor, embedding: float) -> torch.Tensor:
    noise = torch.randn(value.shape)
    if name.endswith("e_score_correction_bias"):  # as trained ones: far from zero, close together
        return 7 + 0.06 * noise
    if name.endswith("A_log"):
        return torch.rand(value.shape) * 2 - 1
    if "embed_tokens" in name:
        return embedding * noise
    if value.dim() == 1:
        around = value.mean() if name.endswith("weight") else torch.zeros(())
        return around + (1.0 if name.endswith("sinks") else 0.25) * noise
    inputs = value.shape[-2] if value.dim() == 3 and "gpt_oss" not in name and _turned(name, value) else value.shape[-1]
    return noise * inputs**-0.5


def _turned(name: str, value: torch.Tensor) -> bool:
    """Stacked experts that are stored [expert, in, out]."""
    return ("down_proj" in name and value.shape[-1] == 64 and value.shape[-2] == 32) or (
        "gate_up_proj" in name and value.shape[-2] == 64)
