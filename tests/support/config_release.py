"""Releases that are a config alone, from published configs cut down to what the rules look at, and targets for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from tests.support.plan_models import target

from dayzero.data.engines import resolve_engine
from dayzero.schema import Release, Target
from dayzero.schema.target import EngineRequest
from dayzero.stages.read import read

Config = dict[str, Any]

LLAMA: Config = {  # Llama-3.1-8B
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                     "original_max_position_embeddings": 8192},
    "tie_word_embeddings": False,
}  # fmt: skip
GLM: Config = {  # GLM-5.2
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144, "vocab_size": 154880,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "num_attention_heads": 64, "num_key_value_heads": 64,
    "num_hidden_layers": 78, "num_nextn_predict_layers": 1, "kv_lora_rank": 512, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32,
    "index_topk": 2048, "indexer_rope_interleave": True, "rope_interleave": True, "indexer_types": ["full"] * 78,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "hidden_act": "silu", "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 1048576, "tie_word_embeddings": False, "moe_layer_freq": 1,
}  # fmt: skip
MIMO: Config = {  # MiMo-V2-Flash
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384, "vocab_size": 152576,
    "max_position_embeddings": 262144, "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334,
    "sliding_window": 128, "sliding_window_size": 128, "attention_chunk_size": 128, "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "moe_intermediate_size": 2048,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 1] * 8, "moe_layer_freq": [0] + [1] * 47, "n_routed_experts": 256,
    "n_shared_experts": None, "num_experts_per_tok": 8, "norm_topk_prob": True, "scoring_func": "sigmoid", "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": None, "hidden_act": "silu", "layernorm_epsilon": 1e-5,
    "attention_value_scale": 0.707, "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
KIMI: Config = {  # Kimi-Linear-48B-A3B
    "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 163840, "intermediate_size": 9216, "moe_intermediate_size": 1024,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "mla_use_nope": True, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "hidden_act": "silu",
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "num_nextn_predict_layers": 0, "model_max_length": 1048576, "tie_word_embeddings": False,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                           "kda_layers": [n for n in range(1, 27) if n % 4], "short_conv_kernel_size": 4},
}  # fmt: skip
GEMMA: Config = {  # gemma-3-1b-it
    "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
    "head_dim": 256, "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "max_position_embeddings": 32768,
}  # fmt: skip
MINIMAX: Config = {  # MiniMax-M3
    "model_type": "minimax_m3", "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64,
    "head_dim": 128, "num_key_value_heads": 4, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "vocab_size": 200064,
    "moe_intermediate_size": 3072, "shared_intermediate_size": 3072, "n_shared_experts": 1, "num_local_experts": 128,
    "num_experts_per_tok": 4, "first_k_dense_replace": 3, "moe_layer_freq": [0] * 3 + [1] * 57, "num_mtp_modules": 7,
    "num_nextn_predict_layers": 1, "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_beta": 1.0,
    "swiglu_limit": 7.0, "partial_rotary_factor": 0.5, "rotary_dim": 64, "rope_theta": 5000000, "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 2.0, "scoring_func": "sigmoid", "use_routing_bias": True, "use_gemma_norm": True,
    "sparse_attention_config": {"sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_block_size": 128,
                                "sparse_topk_blocks": 16, "sparse_init_block": 0, "sparse_local_block": 1},
    "max_position_embeddings": 1048576, "tie_word_embeddings": False,
}  # fmt: skip


def without(config: Config, *keys: str, **changes: Any) -> Config:
    """A config without some keys and with others changed."""
    return {**{key: value for key, value in config.items() if key not in keys}, **changes}


def nested(config: Config) -> Config:
    """The same language model inside a model of several parts."""
    return {"architectures": ["SomeForConditionalGeneration"], "model_type": "some", "text_config": config,
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "rope_theta": 100.0, "hidden_act": "gelu"}}


def release(folder: Path, config: Config, **code: str) -> Release:
    """A folder with this config and shipped files (`name="text"`), as read."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in code.items():
        (folder / f"{name}.py").write_text(text)
    return read(folder, cache=folder.parent / "cache")


def on(**facts: Any) -> Target:
    """One device, and an engine of which these facts are known."""
    plain = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)
    return msgspec.structs.replace(plain, engine=resolve_engine(EngineRequest(**facts)))
