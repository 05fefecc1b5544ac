"""A small release with real bytes, written by the safetensors format's own description: the input of reading tests."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

# A llama-like decoder, small enough that a test can write thousands of them.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 256, "head_dim": 16,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip

ITEM = {"BF16": 2, "F32": 4, "U8": 1, "F16": 2}

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def tensors() -> Tensors:
    """Name -> (dtype, shape) of everything the config implies."""
    found: Tensors = {"model.embed_tokens.weight": ("BF16", (256, 64))}
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
              "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64),
              "mlp.down_proj": (64, 128), "input_layernorm": (64,), "post_attention_layernorm": (64,)}  # fmt: skip
    for layer in range(3):
        found |= {f"model.layers.{layer}.{name}.weight": ("BF16", shape) for name, shape in shapes.items()}
    return found | {"model.norm.weight": ("BF16", (64,)), "lm_head.weight": ("BF16", (256, 64))}


def header(entries: dict[str, Any]) -> bytes:
    """Length and JSON, padded to a multiple of 8."""
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_shard(path: Path, held: Tensors, seed: int = 0, hole: bool = False) -> None:
    """A safetensors file with random bytes (no NaN in BF16), or with a hole in place of the data."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in held.items():
        end = at + prod(shape) * ITEM[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    with path.open("wb") as file:
        file.write(header(entries))
        if hole:
            file.truncate(file.tell() + at)
        else:
            file.write(np.random.default_rng(seed).integers(0, 64, at, dtype=np.uint8).tobytes())


def write(folder: Path, shards: int = 2, hole: bool = False, index: bool = True) -> Path:
    """A complete release of `shards` files (1: `model.safetensors`, without index) in `folder`; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "modeling_small.py").write_text("raise SystemExit('release code is not run by reading it')\n")
    (folder / "README.md").write_text("small\n")
    everything = list(tensors().items())
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    weight_map = {}
    for number, name in enumerate(names):
        held = dict(everything[number * len(everything) // shards : (number + 1) * len(everything) // shards])
        write_shard(folder / name, held, seed=number, hole=hole)
        weight_map |= dict.fromkeys(held, name)
    if shards > 1 and index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
