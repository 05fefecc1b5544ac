"""Weights of a small dense decoder in the formats that releases use, module by module."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from . import tiny_release as tiny

HIDDEN, WIDTH, HEADS, KV = 256, 512, 8, 4
LAYERS = 4
CONFIG: dict[str, object] = {
    "architectures": ["TinyForCausalLM"], "model_type": "tiny", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": 32, "intermediate_size": WIDTH,
    "vocab_size": 128, "tie_word_embeddings": False, "dtype": "bfloat16", "max_position_embeddings": 1024,
}  # fmt: skip
MODULES = {"self_attn.q_proj": (256, HIDDEN), "self_attn.k_proj": (128, HIDDEN), "self_attn.v_proj": (128, HIDDEN),
           "self_attn.o_proj": (HIDDEN, 256), "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN),
           "mlp.down_proj": (HIDDEN, WIDTH)}


def stored(name: str, shape: tuple[int, int], form: str) -> tiny.Tensors:
    """The tensors of one module in a format; blocks of 128 x 128, groups of 32 (integers: 64)."""
    out, inp = shape
    plain: tiny.Tensors = {f"{name}.weight": (shape, "BF16")}
    blocks = (ceil(out / 128), ceil(inp / 128))
    return {
        "bf16": plain,
        "f32": {f"{name}.weight": (shape, "F32")},
        "fp8-block": {f"{name}.weight": (shape, "F8_E4M3"), f"{name}.weight_scale_inv": (blocks, "F32")},
        "fp8-rounded": {f"{name}.weight": (shape, "F8_E4M3"), f"{name}.weight_scale_inv": (blocks, "F8_E8M0")},
        "fp8-row": {f"{name}.weight": (shape, "F8_E4M3"), f"{name}.weight_scale": ((out, 1), "BF16")},
        "fp8-tensor": {f"{name}.weight": (shape, "F8_E4M3"), f"{name}.weight_scale": ((), "F32"),
                       f"{name}.input_scale": ((), "F32")},
        "mxfp8": {f"{name}.weight": (shape, "F8_E4M3"), f"{name}.weight_scale": ((out, inp // 32), "U8")},
        "mxfp4": {f"{name}.weight_packed": ((out, inp // 2), "U8"), f"{name}.weight_scale": ((out, inp // 32), "U8")},
        "nvfp4": {f"{name}.weight": ((out, inp // 2), "U8"), f"{name}.weight_scale": ((out, inp // 16), "F8_E4M3"),
                  f"{name}.weight_scale_2": ((), "F32"), f"{name}.input_scale": ((), "F32")},
        "int4": {f"{name}.weight_packed": ((out, inp // 8), "I32"), f"{name}.weight_scale": ((out, inp // 64), "BF16"),
                 f"{name}.weight_shape": ((2,), "I32")},
        "gptq": {f"{name}.qweight": ((inp // 8, out), "I32"), f"{name}.scales": ((inp // 64, out), "F16"),
                 f"{name}.qzeros": ((inp // 64, out // 8), "I32"), f"{name}.g_idx": ((inp,), "I32")},
        "awq": {f"{name}.qweight": ((inp, out // 8), "I32"), f"{name}.scales": ((inp // 64, out), "F16"),
                f"{name}.qzeros": ((inp // 64, out // 8), "I32")},
        "int8": {f"{name}.weight": (shape, "I8"), f"{name}.weight_scale": ((out, 1), "BF16")},
    }[form]


def tensors(form: str, others: Mapping[str, str] | None = None, *, prefix: str = "model.", head: str = "lm_head",
            layers: int = LAYERS) -> tiny.Tensors:
    """A decoder in one format. `others`: part of a module's name -> its format."""
    found: tiny.Tensors = {f"{prefix}embed_tokens.weight": ((128, HIDDEN), "BF16"),
                           f"{prefix}norm.weight": ((HIDDEN,), "BF16"), f"{head}.weight": ((128, HIDDEN), "BF16")}
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}layers.{layer}.{norm}.weight"] = ((HIDDEN,), "BF16")
        for module, shape in MODULES.items():
            name = f"{prefix}layers.{layer}.{module}"
            chosen = next((other for part, other in (others or {}).items() if part in name), form)
            found |= stored(name, shape, chosen)
    return found


def config(quantization: object, **more: object) -> dict[str, object]:
    """The config with that statement of quantisation (None: none)."""
    return {**CONFIG, **({"quantization_config": quantization} if quantization is not None else {}), **more}


def group(bits: int, kind: str, size: int | None = None, **more: object) -> dict[str, object]:
    """A statement in groups of targets."""
    weights = {"num_bits": bits, "type": kind, "group_size": size, "strategy": "group" if size else "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": groups, **more}


FP8: dict[str, object] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
ROW8: dict[str, object] = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                           "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {
                               "num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, "weights": {
                               "num_bits": 8, "type": "float", "strategy": "channel"}}}}
GPTQ: dict[str, object] = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}
AWQ: dict[str, object] = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True,
                          "modules_to_not_convert": None}
W8A8: dict[str, object] = {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
                           "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {
                               "num_bits": 8, "type": "int", "strategy": "token"}, "weights": {
                               "num_bits": 8, "type": "int", "strategy": "channel"}}}}
QUARK: dict[str, object] = {
    "quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {},
    "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
                            "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}}
ALL = {
    "fp8-block": FP8, "fp8-rounded": {**FP8, "scale_fmt": "ue8m0"}, "fp8-row": ROW8,
    "fp8-tensor": {"quant_algo": "FP8", "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"},
    "mxfp8": {"quant_method": "mxfp8", "modules_to_not_convert": ["lm_head"]},
    "mxfp4": group(4, "float", 32, format="mxfp4-pack-quantized"), "nvfp4": {
        "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"], "quant_method": "modelopt"},
    "int4": group(4, "int", 64, format="pack-quantized"), "gptq": GPTQ, "awq": AWQ, "int8": W8A8,
}  # fmt: skip
"""Format -> how a config states it."""
