"""Small models of every kind of attention, with random weights in fp32, and what the library's own generation gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_COMMON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512, "pad_token_id": 0,
           "bos_token_id": 1, "eos_token_id": 2}
_MOE = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
_MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "num_key_value_heads": 4}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("LlamaConfig", {}),
    "window and sink": ("GptOssConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
                                         "sliding_window": 12,
                                         "layer_types": ["sliding_attention", "full_attention"]}),
    "latent": ("DeepseekV3Config", _MOE | _MLA | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                                                  "n_shared_experts": 1, "first_k_dense_replace": 1}),
    # Heads enough that no score is zero: of equal scores, the ones that are chosen may depend on the batch.
    "indexed": ("GlmMoeDsaConfig", _MOE | _MLA | {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "index_topk": 12, "index_head_dim": 16, "index_n_heads": 16}),
    "chunked and full": ("Llama4TextConfig", {
        "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 4, "num_experts_per_tok": 1,
        "attention_chunk_size": 12, "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]}),
    "linear and full": ("Qwen3NextConfig", _MOE | {
        "num_experts": 4, "shared_expert_intermediate_size": 24, "head_dim": 8, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"]}),
    "linear and latent": ("KimiLinearConfig", _MOE | _MLA | {
        "num_local_experts": 4, "num_shared_experts": 1, "n_group": 1, "topk_group": 1, "head_dim": 8,
        "linear_head_dim": 8, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}),
    "state space": ("Mamba2Config", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16}),
}


@dataclass(frozen=True)
class Small:
    """A model and its greedy continuations."""

    model: Any

    def alone(self, tokens: tuple[int, ...], new: int) -> list[int]:
        """What the library generates for one prompt."""
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            found = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False,
                                        eos_token_id=None, pad_token_id=0)
        return list(found[0, len(tokens):].tolist())


@cache
def small(kind: str) -> Small:
    """The model of that kind."""
    name, changes = _CONFIGS[kind]
    config = getattr(transformers, name)(**(_COMMON | changes))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return Small(model)


@pytest.fixture(params=list(_CONFIGS))
def each_kind(request: pytest.FixtureRequest) -> Small:
    """Every kind of attention, one after the other."""
    return small(request.param)


@pytest.fixture(params=["window and sink", "linear and full", "linear and latent"])
def mixed(request: pytest.FixtureRequest) -> Small:
    """Models whose layers keep the past in different ways."""
    return small(request.param)


@pytest.fixture
def full() -> Small:
    """The plainest model."""
    return small("full")


@pytest.fixture
def states() -> Small:
    """A model with states and tokens."""
    return small("linear and full")
