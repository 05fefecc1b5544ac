"""Releases made by hand: a config and the little that the trace asks a ModelSpec for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dayzero.schema import Attention, FeedForward, FileEntry, Layer, ModelSpec, Release, TensorTable

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 100,
    "tie_word_embeddings": True, "dtype": "bfloat16", "hidden_act": "silu", "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    **DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
SLIDING: dict[str, Any] = {
    **DENSE, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8,
}  # fmt: skip


def make(config: dict[str, Any], *, parameters: int = 0, files: tuple[str, ...] = (), root: Path | None = None
         ) -> Release:
    """A release of that config; layers are `dense` where the config says so, `experts` elsewhere."""
    experts = config.get("num_experts", 0)
    dense = config.get("mlp_only_layers", []) if experts else range(config["num_hidden_layers"])
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    layers = tuple(Layer(attention=kind, feed_forward="dense" if index in dense else "experts")
                   for index, kind in enumerate(kinds))
    attention = Attention(kind="full", heads=6, kv_heads=2, head_dim=8, v_head_dim=8)
    blocks = {"experts": FeedForward(kind="experts", width=16, input_width=48, experts=experts,
                                     top_k=config.get("num_experts_per_tok", 0))} if experts else {}
    model = ModelSpec(
        name="made", architectures=tuple(config["architectures"]), model_type=config.get("model_type", ""),
        hidden_size=48, vocab_size=100, max_positions=512, tied_embeddings=True, layers=layers,
        attentions=dict.fromkeys(kinds, attention), feed_forwards=blocks, families=(), mtp_layers=0,
        parameters=parameters, parameters_text=parameters, parameters_active={}, checkpoint_bytes=0, dtype="bf16")
    entries = tuple(FileEntry(name=name, size=1, origin="test", role="code" if name.endswith(".py") else "other")
                    for name in files)
    return Release(name="made", origin="test", has_weights=False, files=entries,
                   tensors=TensorTable(files=(), groups=()), index=None, missing_shards=(), config=config,
                   model=model, root=str(root) if root else None)


@pytest.fixture(name="make")
def make_fixture() -> Callable[..., Release]:
    return make


@pytest.fixture(name="configs")
def configs_fixture() -> dict[str, dict[str, Any]]:
    return {"dense": DENSE, "experts": EXPERTS, "sliding": SLIDING}
