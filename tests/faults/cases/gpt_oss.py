"""Faults of windows, sinks, biases and a clamped activation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tests.faults.fault import Fault, attribute, code, weights
from tests.faults.work import Way

_ATTENTION, _SLIDING = r"model\.layers\.\d\.self_attn", r"model\.layers\.[02]\.self_attn"
_EXPERTS = r"model\.layers\.\d\.mlp\.experts"


def window(by: int) -> Any:
    """A fault: windows that are longer by so many tokens."""

    def plant(model: Any) -> None:
        model.config.sliding_window += by
        attribute(_SLIDING, sliding_window=lambda kept: kept + by)(model)

    return plant


def _kinds(model: Any) -> None:
    model.config.layer_types = model.config.layer_types[1:] + model.config.layer_types[:1]


def _truncated(model: Any) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(model.config)
    config.rope_parameters["truncate"] = True
    model.model.rotary_emb.inv_freq = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[0]


def _last_block(weight: torch.Tensor) -> torch.Tensor:
    """The exponent of the last block of 16 inputs of some outputs is one too high."""
    weight[:, -16:, 40:48] *= 2
    return weight


FAULTS = (
    Fault(
        "sinks dropped",
        "gpt_oss",
        (_ATTENTION,),
        "sink",
        code(
            _ATTENTION,
            eager_attention_forward=(
                "sinks = module.sinks.reshape(1, -1, 1, 1)",
                "sinks = (module.sinks * 0 - 1e4).reshape(1, -1, 1, 1)",
            ),
        ),
        "attention",
    ),
    Fault("window one token short", "gpt_oss", (_SLIDING,), "window", window(-1), "attention"),
    Fault("window one token long", "gpt_oss", (_SLIDING,), "window", window(1), "attention"),
    Fault("windows on the wrong layers", "gpt_oss", (_ATTENTION,), "window|layer_types|sliding", _kinds, "attention"),
    Fault(
        "clamp of the class",
        "gpt_oss",
        (_EXPERTS,),
        "clamp|limit|swiglu",
        attribute(_EXPERTS, limit=7.0),
        "experts",
        seen="vllm-ascend#14398",
    ),
    Fault(
        "alpha of the usual activation",
        "gpt_oss",
        (_EXPERTS,),
        "alpha|swiglu",
        attribute(_EXPERTS, alpha=1.0),
        "experts",
    ),
    Fault(
        "up without its one",
        "gpt_oss",
        (_EXPERTS,),
        r"constant 1 dropped",
        code(_EXPERTS, _apply_gate=("(up + 1) * glu", "up * glu")),
        "experts",
    ),
    Fault(
        "gate and up in halves",
        "gpt_oss",
        (_EXPERTS,),
        r"interleav|order|layout|halves|permut",
        code(
            _EXPERTS,
            _apply_gate=("gate, up = gate_up[..., ::2], gate_up[..., 1::2]", "gate, up = gate_up.chunk(2, -1)"),
        ),
        "experts",
    ),
    Fault(
        "output bias dropped",
        "gpt_oss",
        (r"model\.layers\.1\.self_attn\.o_proj",),
        r"bias|same vector",
        weights("model.layers.1.self_attn.o_proj.bias", torch.zeros_like),
        "linear",
    ),
    Fault(
        "experts' bias dropped",
        "gpt_oss",
        (r"model\.layers\.2\.mlp\.experts",),
        r"bias|same vector",
        weights("model.layers.2.mlp.experts.down_proj_bias", torch.zeros_like),
        "experts",
    ),
    Fault(
        "bias added by both ranks",
        "gpt_oss",
        (r"model\.layers\.0\.self_attn\.o_proj",),
        r"bias|same vector",
        weights("model.layers.0.self_attn.o_proj.bias", lambda bias: 2 * bias),
        "linear",
    ),
    Fault(
        "YaRN's attention factor",
        "gpt_oss",
        (r"model\.rotary_emb",),
        r"attention.?factor|attention_scaling|yarn|mscale|times what",
        attribute(r"model\.rotary_emb", attention_scaling=1.0),
        "rotary",
    ),
    Fault(
        "YaRN's bounds truncated",
        "gpt_oss",
        (r"model\.rotary_emb",),
        "yarn|truncate|frequenc|rope",
        _truncated,
        "rotary",
    ),
    Fault(
        "block scale off by one",
        "gpt_oss",
        (r"model\.layers\.1\.mlp\.experts",),
        r"block|channels 40",
        weights("model.layers.1.mlp.experts.down_proj", _last_block),
        "experts",
    ),
    Fault(
        "packed sequences see each other",
        "gpt_oss",
        (_ATTENTION,),
        r"another sequence|sequence before|packed",
        operator="attention",
        way=Way(packed=True, cache=False),
    ),
    Fault(
        "router bias dropped",
        "gpt_oss",
        (r"model\.layers\.3\.mlp\.router",),
        r"bias|same vector",
        weights("model.layers.3.mlp.router.bias", torch.zeros_like),
        "router",
    ),
)
