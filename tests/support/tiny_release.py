"""A small release on disk, with whatever is to be wrong with it: real headers, data of zeros."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path

Tensors = dict[str, tuple[tuple[int, ...], str]]
"""Tensor name -> shape and dtype."""
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4}

LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, VOCAB, EXPERTS = 12, 64, 9, 3, 96, 128, 4
CONFIG: dict[str, object] = {
    "architectures": ["TinyForCausalLM"], "model_type": "tiny", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": 16, "intermediate_size": WIDTH,
    "vocab_size": VOCAB, "tie_word_embeddings": True, "dtype": "bfloat16", "max_position_embeddings": 1024,
}  # fmt: skip


def dense_tensors() -> Tensors:
    """Twelve dense layers with a tied embedding."""
    tensors: Tensors = {"model.embed_tokens.weight": ((VOCAB, HIDDEN), "BF16"),
                        "model.norm.weight": ((HIDDEN,), "BF16")}
    for layer in range(LAYERS):
        shapes = {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * 16, HIDDEN), "self_attn.k_proj": (KV_HEADS * 16, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * 16, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * 16),
            "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN), "mlp.down_proj": (HIDDEN, WIDTH),
        }  # fmt: skip
        tensors |= {f"model.layers.{layer}.{name}.weight": (shape, "BF16") for name, shape in shapes.items()}
    return tensors


def expert_tensors() -> Tensors:
    """The same with four experts in each layer, in 8-bit blocks of 32."""
    tensors = {name: what for name, what in dense_tensors().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = ((EXPERTS, HIDDEN), "BF16")
        for expert in range(EXPERTS):
            for matrix, shape in (("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)),
                                  ("down_proj", (HIDDEN, WIDTH))):  # fmt: skip
                name = f"model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight"
                tensors[name] = (shape, "F8_E4M3")
                tensors[f"{name}_scale_inv"] = ((shape[0] // 32, shape[1] // 32), "F32")
    return tensors


EXPERT_CONFIG: dict[str, object] = {
    **CONFIG, "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32],
                            "modules_to_not_convert": ["self_attn"]},
}  # fmt: skip


def write(folder: Path, tensors: Tensors, config: dict[str, object] = CONFIG, *, shards: int = 2,
          unlisted: Iterable[str] = ()) -> Path:
    """Write config, index and shards, the tensors dealt out in order; `unlisted` are left out of the index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        chosen = names[shard * len(names) // shards:(shard + 1) * len(names) // shards]
        header, at = {}, 0
        for name in chosen:
            shape, dtype = tensors[name]
            size = prod(shape) * BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
            weight_map[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    index = {"weight_map": {name: file for name, file in weight_map.items() if name not in set(unlisted)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
