"""Faults of a dense model with grouped key/value heads."""

from __future__ import annotations

from typing import Any

import torch
from tests.faults.fault import Fault, attribute, code, layers, weights
from tests.faults.work import Meddling, Way, sequences
from torch import nn

_ATTENTION = r"model\.layers\.\d\.self_attn"
_TURN = (
    "x1 = x[..., : x.shape[-1] // 2]\n    x2 = x[..., x.shape[-1] // 2 :]\n    return torch.cat((-x2, x1), dim=-1)",
    "return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)",
)
_SPREAD = (
    (
        "cos = cos.unsqueeze(unsqueeze_dim)",
        "cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim)",
    ),
    (
        "sin = sin.unsqueeze(unsqueeze_dim)",
        "sin = sin[..., : sin.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim)",
    ),
)
_LEAK = (
    "attn_weights = attn_weights + attention_mask",
    "attn_weights = attn_weights + torch.cat((attention_mask[..., 1:, :], attention_mask[..., -1:, :]), -2)",
)


def _again(model: Any) -> None:
    layers(model)[2].load_state_dict(layers(model)[1].state_dict())


def _swapped(model: Any) -> None:
    mlp = layers(model)[1].mlp
    mlp.gate_proj.weight, mlp.up_proj.weight = mlp.up_proj.weight, mlp.gate_proj.weight


def _old_rows(weight: torch.Tensor) -> torch.Tensor:
    """The second half of the rows as they were some steps before."""
    numbers = torch.Generator().manual_seed(7)
    half = len(weight) // 2
    weight[half:] += 0.04 * weight.std() * torch.randn(weight[half:].shape, generator=numbers)
    return weight


def _partial(weight: torch.Tensor) -> torch.Tensor:
    weight[:, weight.shape[1] // 2 :] = 0
    return weight


def _nan(weight: torch.Tensor) -> torch.Tensor:
    weight[11, 5] = float("nan")
    return weight


def _other_sign(weight: torch.Tensor) -> torch.Tensor:
    weight[:, 32:48] *= -1
    return weight


def _flipped(weight: torch.Tensor) -> torch.Tensor:
    """One bit of the exponent of one value."""
    weight[40, 9] *= 4
    return weight


def _one_token(weight: torch.Tensor) -> torch.Tensor:
    """The row of one token, which one prompt has."""
    token = sequences()[1][11]
    weight[token] = weight[token + 1]
    return weight


def _slightly_old(weight: torch.Tensor) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(9)
    weight[:32] += 0.01 * weight.std() * torch.randn(weight[:32].shape, generator=numbers)
    return weight


def _rounded(kept: torch.Tensor) -> torch.Tensor:
    return kept.bfloat16().float()


def _blocks(cache: Any) -> None:
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            states[0, :, 24:32], states[1, :, 24:32] = states[1, :, 24:32].clone(), states[0, :, 24:32].clone()


def _scales(cache: Any) -> None:
    """Keys are written with their own scale and read with that of the values."""
    for layer in cache.layers:
        own, other = layer.keys.abs().max() / 448, layer.values.abs().max() / 448
        layer.keys = (layer.keys / own).to(torch.float8_e4m3fn).to(layer.keys.dtype) * other


FAULTS = (
    Fault(
        "rope base of the class",
        "llama",
        (r"model\.rotary_emb",),
        "rope.?theta|rope base|\\bbase|theta|frequenc",
        attribute(r"model\.rotary_emb", inv_freq=lambda kept: 10000.0 ** (-torch.arange(0, 16, 2) / 16)),
        "rotary",
        seen="DeepSpeed#8341",
    ),
    Fault(
        "interleaved rotary layout",
        "llama",
        (_ATTENTION,),
        "interleav|rotary layout|half.?split|pairing",
        code(_ATTENTION, apply_rotary_pos_emb=_SPREAD, rotate_half=_TURN),
        "attention",
        seen="transformers#46842",
    ),
    Fault(
        "gate and up swapped",
        "llama",
        (r"model\.layers\.1\.mlp\.(gate|up)_proj", r"model\.layers\.1\.mlp"),
        "swap|exchang",
        _swapped,
        "linear",
    ),
    Fault(
        "square weight transposed",
        "llama",
        (r"model\.layers\.2\.self_attn\.o_proj",),
        "transpos",
        weights("model.layers.2.self_attn.o_proj.weight", lambda weight: weight.T),
        "linear",
    ),
    Fault(
        "norm epsilon",
        "llama",
        (r"model\.layers\.0\.input_layernorm",),
        "eps",
        attribute(r".*norm", variance_epsilon=1e-6),
        "norm",
    ),
    Fault(
        "key/value heads repeated in the wrong order",
        "llama",
        (_ATTENTION,),
        "kv.?head|key.?value head|replicat|group",
        code(
            _ATTENTION,
            eager_attention_forward=(),
            repeat_kv=(
                "[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)",
                ".repeat(1, n_rep, 1, 1)",
            ),
        ),
        "attention",
    ),
    Fault(
        "one token of the future",
        "llama",
        (r"model\.layers\.2\.self_attn",),
        "causal|future|mask|later token",
        code(r"model\.layers\.2\.self_attn", eager_attention_forward=_LEAK),
        "attention",
    ),
    Fault(
        "residual missing",
        "llama",
        (r"model\.layers\.2",),
        "residual|skip connection|input is not added",
        code(
            r"model\.layers\.2",
            forward=(
                "hidden_states = self.mlp(hidden_states)\n    hidden_states = residual + hidden_states",
                "hidden_states = self.mlp(hidden_states)",
            ),
        ),
        "layer",
    ),
    Fault(
        "softmax scale",
        "llama",
        (r"model\.layers\.1\.self_attn",),
        r"scaling|softmax scale",
        attribute(r"model\.layers\.1\.self_attn", scaling=8**-0.5),
        "attention",
    ),
    Fault(
        "softmax scale, slightly",
        "llama",
        (_ATTENTION,),
        r"scaling|softmax scale",
        attribute(_ATTENTION, scaling=lambda kept: kept * 1.03),
        "attention",
    ),
    Fault(
        "last layer skipped",
        "llama",
        (r"model\.layers\.3(\..*)?",),
        r"skip|not run|absent",
        code(
            r"model\.layers\.3",
            forward=(
                "residual = hidden_states\n    hidden_states = self.input_layernorm(hidden_states)",
                "return hidden_states",
            ),
        ),
        "layer",
    ),
    Fault(
        "a layer loaded twice",
        "llama",
        (r"model\.layers\.2(\..*)?",),
        r"another layer|other layer",
        _again,
        "layer",
    ),
    Fault(
        "one rank's rows stale",
        "llama",
        (r"model\.layers\.1\.mlp\.gate_proj",),
        r"rank|shard|stale",
        weights("model.layers.1.mlp.gate_proj.weight", _old_rows),
        "linear",
    ),
    Fault(
        "sum over ranks missing",
        "llama",
        (r"model\.layers\.2\.mlp\.down_proj",),
        r"rank|shard|partial|sum over|zeros in columns",
        weights("model.layers.2.mlp.down_proj.weight", _partial),
        "linear",
    ),
    Fault(
        "one NaN",
        "llama",
        (r"model\.layers\.2\.mlp\.down_proj",),
        "nan|not a number",
        weights("model.layers.2.mlp.down_proj.weight", _nan),
        "linear",
        seen="sglang#31001",
    ),
    Fault(
        "sign of one head",
        "llama",
        (r"model\.layers\.1\.self_attn\.o_proj",),
        r"sign|negat",
        weights("model.layers.1.self_attn.o_proj.weight", _other_sign),
        "linear",
    ),
    Fault(
        "another activation",
        "llama",
        (r"model\.layers\.\d\.mlp(\.act_fn)?",),
        "act_fn|gelu|hidden_act",
        attribute(r"model\.layers\.\d\.mlp", act_fn=lambda kept: nn.GELU(approximate="tanh")),
        "activation",
    ),
    Fault(
        "position off by one after padding",
        "llama",
        (r"model\.rotary_emb", "model"),
        r"position|decod",
        operator="rotary",
        way=Way(batch=2, shift=1),
    ),
    Fault(
        "cache blocks swapped after reload",
        "llama",
        (_ATTENTION,),
        r"another sequence|cache|page|decod",
        operator="cache",
        way=Way(batch=2),
        meddling=Meddling(filled=_blocks),
    ),
    Fault(
        "cache read with another scale",
        "llama",
        (_ATTENTION,),
        r"cache|decod|page|from position",
        operator="cache",
        meddling=Meddling(filled=_scales),
    ),
    Fault(
        "a row of the head moved to the end of its block",
        "llama",
        (r"lm_head",),
        r"permut|order|place|channels 256",
        weights("lm_head.weight", lambda weight: torch.cat((weight[:256], weight[257:], weight[256:257]))),
        "head",
    ),
    Fault(
        "one bit of one weight",
        "llama",
        (r"model\.layers\.2\.self_attn\.v_proj",),
        r"channels? 9\b",
        weights("model.layers.2.self_attn.v_proj.weight", lambda weight: _flipped(weight.T).T),
        "linear",
    ),
    Fault(
        "one token's embedding",
        "llama",
        (r"model\.embed_tokens",),
        r"sequence 1 of|one token|1 of \d+ (rows|tokens)",
        weights("model.embed_tokens.weight", _one_token),
        "embedding",
    ),
    Fault(
        "one rank's rows slightly stale",
        "llama",
        (r"model\.layers\.3\.self_attn\.o_proj",),
        r"rank|shard|stale",
        weights("model.layers.3.self_attn.o_proj.weight", _slightly_old),
        "linear",
        precision="f32",
    ),
    Fault(
        "frequencies kept in bf16",
        "llama",
        (r"model\.rotary_emb",),
        "bf16|rounded|roundings",
        attribute(r"model\.rotary_emb", inv_freq=_rounded),
        "rotary",
        precision="f32",
    ),
)
