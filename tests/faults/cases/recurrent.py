"""Faults of layers with a state: gated delta rule and its convolution, in two architectures."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tests.faults.fault import Fault, attribute, code, weights
from tests.faults.work import Meddling

_LINEAR, _FULL = r"model\.layers\.[02]\.linear_attn", r"model\.layers\.[13]\.self_attn"
_DELTA = r"model\.layers\.[02]\.(self_attn|linear_attn|attention)"


def _states(cache: Any) -> list[Any]:
    return [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]


def _kept(cache: Any, before: Any) -> None:
    """States of the sequence before are not cleared."""
    if before is not None:
        for number, layer in enumerate(before.layers):
            if hasattr(layer, "recurrent_states"):
                fresh = cache.layers[number] = copy.deepcopy(layer)
                fresh.conv_states[0].zero_()


def _shifted(cache: Any) -> None:
    for layer in _states(cache):
        layer.conv_states[0] = layer.conv_states[0].roll(1, -1)


def _other_head(cache: Any) -> None:
    """The last head's state is that of the first, as after a transfer to ranks that number heads otherwise."""
    for layer in _states(cache):
        layer.recurrent_states[0][:, -1] = layer.recurrent_states[0][:, 0]


def _taps(weight: torch.Tensor) -> torch.Tensor:
    return weight.flip(-1)


def _queries_keys(weight: torch.Tensor) -> torch.Tensor:
    query, key, value = weight.chunk(3, 0)
    return torch.cat((key, query, value))


FAULTS = (
    Fault(
        "state kept for the next sequence",
        "qwen3_next",
        (_LINEAR,),
        r"state|reset|another sequence|carried",
        operator="state",
        meddling=Meddling(begin=_kept),
    ),
    Fault(
        "convolution's state off by one",
        "qwen3_next",
        (_LINEAR,),
        r"state|cache|conv|decod|from position",
        operator="state",
        meddling=Meddling(filled=_shifted),
    ),
    Fault(
        "norm without its one",
        "qwen3_next",
        (r"model\.layers\.1\.post_attention_layernorm",),
        r"channel has a factor|one taken off|constant 1 dropped",
        code(
            r"model\.layers\.1\.post_attention_layernorm",
            forward=("(1.0 + self.weight.float())", "self.weight.float()"),
        ),
        "norm",
    ),
    Fault(
        "shared expert's gate left out",
        "qwen3_next",
        (r"model\.layers\.\d\.mlp(\.shared_expert_gate)?",),
        r"gate|shared|sigmoid|factor dropped",
        code(
            r"model\.layers\.\d\.mlp",
            forward=(
                "F.sigmoid(self.shared_expert_gate(hidden_states_reshaped)) * shared_expert_output",
                "shared_expert_output",
            ),
        ),
        "experts",
    ),
    Fault(
        "attention's gate left out",
        "qwen3_next",
        (_FULL,),
        r"gate|sigmoid|factor dropped",
        code(_FULL, forward=("attn_output = attn_output * torch.sigmoid(gate)", "pass")),
        "attention",
    ),
    Fault(
        "rotation of all channels",
        "qwen3_next",
        (r"model\.rotary_emb", _FULL),
        r"partial|width|shape",
        attribute(r"model\.rotary_emb", inv_freq=lambda kept: 10000.0 ** (-torch.arange(0, 32, 2) / 32)),
        "rotary",
    ),
    Fault(
        "decay without its bias",
        "qwen3_next",
        (_LINEAR,),
        r"dt_bias|decay|addend|bias",
        code(_LINEAR, forward=("F.softplus(a.float() + self.dt_bias)", "F.softplus(a.float())")),
        "state",
    ),
    Fault(
        "queries and keys not normalised",
        "qwen3_next",
        (_LINEAR,),
        "l2|normali[sz]",
        code(
            _LINEAR,
            torch_chunk_gated_delta_rule=(),
            torch_recurrent_gated_delta_rule=(),
            l2norm=("return x * inv_norm", "return x"),
        ),
        "state",
    ),
    Fault(
        "heads of the state from another rank",
        "qwen3_next",
        (_LINEAR,),
        r"state|head|decod|cache|from position",
        operator="state",
        meddling=Meddling(filled=_other_head),
    ),
    Fault(
        "taps of the convolution reversed",
        "kimi_linear",
        (_DELTA + r"(\.conv1d)?",),
        r"revers|flip|tap|permut|order",
        weights("model.layers.2.self_attn.conv1d.weight", _taps),
        "convolution",
    ),
    Fault(
        "convolutions of queries and keys exchanged",
        "kimi_linear",
        (_DELTA + r"(\.conv1d)?",),
        r"swap|exchang|permut|order|place",
        weights("model.layers.0.self_attn.conv1d.weight", _queries_keys),
        "convolution",
    ),
    Fault(
        "forget gate without its bias",
        "kimi_linear",
        (_DELTA + r"\.forget_gate",),
        r"bias|same vector|addend",
        code(
            _DELTA + r"\.forget_gate",
            forward=("(forget_gate.float() + self.dt_bias.float().view(1, 1, -1))", "forget_gate.float()"),
        ),
        "state",
    ),
    Fault(
        "decay's exponential to first order",
        "kimi_linear",
        (_DELTA + r"\.forget_gate",),
        r"exp\b|function|a_log|decay",
        code(_DELTA + r"\.forget_gate", forward=("decay_rate = torch.exp(A_log)", "decay_rate = 1 + A_log")),
        "state",
    ),
    Fault(
        "state kept for the next sequence, delta attention",
        "kimi_linear",
        (_DELTA,),
        r"state|reset|another sequence|carried",
        operator="state",
        meddling=Meddling(begin=_kept),
    ),
    Fault(
        "softmax scale without the rotary part",
        "kimi_linear",
        (r"model\.layers\.[13]\.self_attn",),
        r"scaling|softmax scale",
        attribute(r"model\.layers\.[13]\.self_attn", scaling=16**-0.5),
        "attention",
    ),
)
