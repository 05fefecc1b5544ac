"""Faults of a mixture of experts behind normalised queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from tests.faults.fault import Fault, attribute, code, layers, weights

_GATE, _EXPERTS = r"model\.layers\.[123]\.mlp\.gate", r"model\.layers\.[123]\.mlp\.experts"
_ATTENTION = r"model\.layers\.\d\.self_attn"


def _exchanged(weight: torch.Tensor) -> torch.Tensor:
    return weight[[0, 1, 5, 3, 4, 2, 6, 7]]


def _two_experts(model: Any) -> None:
    experts = layers(model)[1].mlp.experts
    for weight in (experts.gate_up_proj, experts.down_proj):
        weight.data = _exchanged(weight.data)


def _halves(weight: torch.Tensor) -> torch.Tensor:
    gate, up = weight.chunk(2, 1)
    return torch.cat((up, gate), 1)


def _rows_of_one(weight: torch.Tensor) -> torch.Tensor:
    weight[3] = weight[3].reshape(2, -1, weight.shape[2]).transpose(0, 1).reshape(weight.shape[1:])
    return weight


def _one_row(weight: torch.Tensor) -> torch.Tensor:
    weight[6, 20] *= 0.5
    return weight


def _heads(weight: torch.Tensor) -> torch.Tensor:
    return weight.roll(16, 0)


FAULTS = (
    Fault(
        "chosen experts' weights not normalised",
        "qwen3_moe",
        (_GATE,),
        r"norm_topk|normali[sz]|each token has a factor",
        attribute(_GATE, norm_topk_prob=False),
        "router",
    ),
    Fault(
        "one expert too few",
        "qwen3_moe",
        (_GATE,),
        r"top.?k|num_experts_per_tok|experts per token|shape",
        attribute(_GATE, top_k=1),
        "router",
    ),
    Fault(
        "experts exchanged",
        "qwen3_moe",
        (r"model\.layers\.1\.mlp\.experts",),
        r"expert.*(\b[25]\b|swap|exchang|other)",
        _two_experts,
        "experts",
    ),
    Fault(
        "one expert's rows permuted",
        "qwen3_moe",
        (r"model\.layers\.2\.mlp\.experts",),
        r"expert.*\b3\b",
        weights("model.layers.2.mlp.experts.gate_up_proj", _rows_of_one),
        "experts",
    ),
    Fault(
        "fused gate and up in the other order",
        "qwen3_moe",
        (r"model\.layers\.2\.mlp\.experts",),
        r"swap|exchang|halves|order|permut",
        weights("model.layers.2.mlp.experts.gate_up_proj", _halves),
        "experts",
    ),
    Fault(
        "experts of one rank left out",
        "qwen3_moe",
        (_EXPERTS,),
        r"expert.*\b[67]\b|rank",
        code(_EXPERTS, forward=("if expert_idx == self.num_experts:", "if expert_idx >= 6:")),
        "experts",
    ),
    Fault(
        "norm of queries not loaded",
        "qwen3_moe",
        (r"model\.layers\.1\.self_attn\.q_norm",),
        r"channel has a factor|weight of a norm|ones|default",
        weights("model.layers.1.self_attn.q_norm.weight", torch.ones_like),
        "norm",
    ),
    Fault(
        "norm of keys after the rotation",
        "qwen3_moe",
        (_ATTENTION, r"model\.layers\.\d\.self_attn\.k_norm"),
        r"order|after|rotar|rotat",
        code(
            _ATTENTION,
            forward=(
                (
                    "key_states = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)",
                    "key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)",
                ),
                (
                    "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)",
                    "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n    "
                    "key_states = self.k_norm(key_states)",
                ),
            ),
        ),
        "attention",
    ),
    Fault(
        "key heads exchanged",
        "qwen3_moe",
        (r"model\.layers\.3\.self_attn\.k_proj",),
        r"halves|head|permut|order|swap|exchang",
        weights("model.layers.3.self_attn.k_proj.weight", _heads),
        "linear",
    ),
    Fault(
        "router's weights in 8 bits",
        "qwen3_moe",
        (r"model\.layers\.1\.mlp\.gate",),
        r"round|precision|quanti|8 bit|f8",
        weights("model.layers.1.mlp.gate.weight", lambda weight: weight.to(torch.float8_e4m3fn).float()),
        "router",
    ),
    Fault(
        "scale of one row of one expert",
        "qwen3_moe",
        (r"model\.layers\.3\.mlp\.experts",),
        r"expert.*\b6\b|channels? 20\b",
        weights("model.layers.3.mlp.experts.down_proj", _one_row),
        "experts",
    ),
    Fault(
        "norm epsilon of keys",
        "qwen3_moe",
        (r"model\.layers\.\d\.self_attn\.k_norm",),
        "eps",
        attribute(r"model\.layers\.\d\.self_attn\.k_norm", variance_epsilon=1e-3),
        "norm",
        precision="f32",
    ),
    Fault(
        "weights of the router before the softmax",
        "qwen3_moe",
        (_GATE,),
        r"softmax|sigmoid",
        code(
            _GATE,
            forward=(
                "torch.nn.functional.softmax(router_logits, dtype=torch.float, dim=-1)",
                "router_logits.float().sigmoid()",
            ),
        ),
        "router",
    ),
)
