"""Faults of latent attention, and of a router with groups, a bias and a factor."""

from __future__ import annotations

from typing import Any

import torch
from tests.faults.fault import Fault, attribute, code, layers, weights
from torch import nn

_GATE, _MOE = r"model\.layers\.[123]\.mlp\.gate", r"model\.layers\.[123]\.mlp"
_EXPERTS = r"model\.layers\.[123]\.mlp\.experts"
_ATTENTION = r"model\.layers\.\d\.self_attn"
BLOCK = 16


def _scales(weight: torch.Tensor) -> torch.Tensor:
    """[rows of blocks, columns of blocks] as FP8 releases have it."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    return blocks.abs().amax((1, 3)) / 448


def _wide(scale: torch.Tensor) -> torch.Tensor:
    return scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def _next_row(weight: torch.Tensor) -> torch.Tensor:
    scale = _scales(weight)
    return weight / _wide(scale) * _wide(scale.roll(1, 0))


def _next_column(weight: torch.Tensor) -> torch.Tensor:
    scale = _scales(weight)
    return weight / _wide(scale) * _wide(scale.roll(1, 1))


def _no_latent_norm(model: Any) -> None:
    for layer in layers(model):
        layer.self_attn.kv_a_layernorm = nn.Identity()


def _bias_rounded(model: Any) -> None:
    for layer in layers(model)[1:]:
        layer.mlp.gate.e_score_correction_bias = layer.mlp.gate.e_score_correction_bias.bfloat16().float()


def _parts(weight: torch.Tensor) -> torch.Tensor:
    """Each head's part for keys and for values exchanged."""
    heads = weight.reshape(4, 2, 16, -1)
    return heads.flip(1).reshape(weight.shape)


FAULTS = (
    Fault(
        "routed scaling factor twice",
        "deepseek_v3",
        (_GATE,),
        r"scaling|times what",
        attribute(_GATE, routed_scaling_factor=lambda kept: kept * kept),
        "router",
        seen="vllm#45037",
    ),
    Fault(
        "routed scaling factor not at all",
        "deepseek_v3",
        (_GATE,),
        r"scaling|times what",
        attribute(_GATE, routed_scaling_factor=1.0),
        "router",
        seen="sglang#31449",
    ),
    Fault(
        "scaling factor twice on experts' outputs",
        "deepseek_v3",
        (_MOE, _EXPERTS),
        r"scaling|by 2\.(49|5)|2\.5 times",
        code(
            _MOE,
            forward=(
                "self.experts(hidden_states, topk_indices, topk_weights)",
                "(2.5 * self.experts(hidden_states, topk_indices, topk_weights))",
            ),
        ),
        "experts",
        seen="vllm#45037",
    ),
    Fault(
        "scaling factor of a relative",
        "deepseek_v3",
        (_GATE,),
        r"scaling|times what",
        attribute(_GATE, routed_scaling_factor=2.446),
        "router",
    ),
    Fault(
        "router bias in bf16",
        "deepseek_v3",
        (_GATE,),
        r"bf16|rounded|roundings",
        _bias_rounded,
        "router",
        seen="sglang#31213",
    ),
    Fault(
        "router computed in bf16",
        "deepseek_v3",
        (_GATE,),
        "bf16|round|precision",
        code(
            _GATE,
            forward=(
                "F.linear(hidden_states.type(torch.float32), self.weight.type(torch.float32))",
                "F.linear(hidden_states.bfloat16(), self.weight.bfloat16()).float()",
            ),
        ),
        "router",
    ),
    Fault(
        "bias in the weights of experts",
        "deepseek_v3",
        (_GATE,),
        r"bias",
        code(
            _GATE,
            forward=(
                "topk_weights = scores.gather(1, topk_indices)",
                "topk_weights = scores_for_choice.gather(1, topk_indices)",
            ),
        ),
        "router",
    ),
    Fault("no limit to groups", "deepseek_v3", (_GATE,), "group", attribute(_GATE, topk_group=4), "router"),
    Fault(
        "groups judged by their best expert alone",
        "deepseek_v3",
        (_GATE,),
        r"group|chosen|choice",
        code(_GATE, forward=(".topk(2, dim=-1)[0]", ".topk(1, dim=-1)[0]")),
        "router",
    ),
    Fault(
        "half-split rotary layout",
        "deepseek_v3",
        (_ATTENTION,),
        "interleav|rotary layout|half.?split|pairing",
        code(
            _ATTENTION,
            forward=(
                "apply_rotary_pos_emb_interleave(q_rot, k_rot, cos, sin)",
                "apply_rotary_pos_emb(q_rot, k_rot, cos, sin)",
            ),
        ),
        "attention",
        seen="ik_llama#2099",
    ),
    Fault(
        "YaRN's factor left out of the softmax scale",
        "deepseek_v3",
        (_ATTENTION,),
        r"scaling|yarn|mscale|softmax scale|rope_parameters.factor",
        attribute(_ATTENTION, scaling=24**-0.5),
        "attention",
    ),
    Fault(
        "latent norm missing",
        "deepseek_v3",
        (_ATTENTION + r"\.kv_a_layernorm", _ATTENTION),
        r"skip|comes out|missing|not applied|has a factor of its own",
        _no_latent_norm,
        "norm",
    ),
    Fault(
        "shared expert missing",
        "deepseek_v3",
        (_MOE, _MOE + r"\.shared_experts"),
        r"shared|addend dropped",
        code(_MOE, forward=("hidden_states = hidden_states + self.shared_experts(residuals)", "pass")),
        "experts",
    ),
    Fault(
        "keys' rotary part not rotated",
        "deepseek_v3",
        (_ATTENTION,),
        r"rotar|rope|rotat",
        code(
            _ATTENTION,
            forward=(
                "q_rot, k_rot = apply_rotary_pos_emb_interleave(q_rot, k_rot, cos, sin)",
                "q_rot, _ = apply_rotary_pos_emb_interleave(q_rot, k_rot, cos, sin)",
            ),
        ),
        "attention",
    ),
    Fault(
        "parts for keys and values exchanged",
        "deepseek_v3",
        (r"model\.layers\.2\.self_attn\.kv_b_proj",),
        r"permut|swap|exchang|order|place",
        weights("model.layers.2.self_attn.kv_b_proj.weight", _parts),
        "linear",
    ),
    Fault(
        "FP8 scale rows shifted",
        "deepseek_v3",
        (r"model\.layers\.1\.self_attn\.q_b_proj",),
        "scale|block|quanti",
        weights("model.layers.1.self_attn.q_b_proj.weight", _next_row),
        "linear",
    ),
    Fault(
        "FP8 scale columns shifted",
        "deepseek_v3",
        (r"model\.layers\.2\.self_attn\.o_proj",),
        "scale|block|quanti",
        weights("model.layers.2.self_attn.o_proj.weight", _next_column),
        "linear",
    ),
)
