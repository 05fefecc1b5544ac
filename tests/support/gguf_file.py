"""A GGUF file of a dense decoder's release, written with the `gguf` package as converters write it: rows of queries and
keys in the order of interleaved rotary embedding, matrices in one quantised type, vectors in f32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
          "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
          "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
          "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}  # fmt: skip


def write(release: Path, out: Path, kind: str) -> Path:
    """`kind`: a type of which the package has the quantisation, such as Q4_0 or Q8_0."""
    config = json.loads((release / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    _head(writer, config)
    _tokenizer(writer, json.loads((release / "tokenizer.json").read_text()), config)
    form = gguf.GGMLQuantizationType[kind]
    for name, values in _tensors(release, config):
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _head(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    names = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {each["id"] for each in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([3 if number in special else 1 for number in range(len(names))])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _tensors(release: Path, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """(ggml's name, f32 values)"""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for file in sorted(release.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                module = name.removesuffix(".weight")
                layer = module.split(".")[2] if module.startswith("model.layers.") else None
                own = _NAMES[module if layer is None else module.split(".", 3)[3]]
                values = tensors.get_tensor(name).float().numpy()
                if own in heads:
                    values = _interleaved(values, heads[own])
                yield (f"{own}.weight" if layer is None else f"blk.{layer}.{own}.weight"), values


def _interleaved(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of halves, as the library has them, turn by turn, as ggml has them."""
    parts = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(matrix.shape))
