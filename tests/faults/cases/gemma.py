"""Faults of caps, windows, two rotary bases, norms on both sides and a tied embedding."""

from __future__ import annotations

from typing import Any

import torch
from tests.faults.cases.gpt_oss import window
from tests.faults.fault import Fault, attribute, code, layers
from tests.faults.work import Meddling
from torch import nn

_ATTENTION = r"model\.layers\.\d\.self_attn"


def _no_cap(model: Any) -> None:
    model.config.final_logit_softcapping = None


def _own_head(model: Any) -> None:
    """The head keeps an embedding of some steps before."""
    numbers = torch.Generator().manual_seed(5)
    weight = model.lm_head.weight.detach().float()
    noise = torch.randn(weight.shape, generator=numbers) * weight.std()
    model.lm_head.weight = nn.Parameter(
        (0.995 * weight + 0.1 * noise).to(model.lm_head.weight.dtype), requires_grad=False
    )


def _one_base(model: Any) -> None:
    model.model.rotary_emb.full_attention_inv_freq = model.model.rotary_emb.sliding_attention_inv_freq


def _forgotten(cache: Any) -> None:
    """The oldest token in the window has been given away: nothing is attended to there."""
    for layer in cache.layers[0::2]:
        layer.values[:, :, 0] = 0
        layer.keys[:, :, 0] = 0


def _no_post_norm(model: Any) -> None:
    layers(model)[1].post_feedforward_layernorm = nn.Identity()


FAULTS = (
    Fault("cap of logits missing", "gemma2", ("", "lm_head"), "softcap|cap|tanh", _no_cap, "head"),
    Fault(
        "cap of attention missing",
        "gemma2",
        (_ATTENTION,),
        "softcap|cap|tanh",
        attribute(_ATTENTION, attn_logit_softcapping=None),
        "attention",
    ),
    Fault(
        "window off by one, capped attention",
        "gemma2",
        (r"model\.layers\.[02]\.self_attn",),
        "window",
        window(1),
        "attention",
    ),
    Fault(
        "tied head from older weights",
        "gemma2",
        ("lm_head",),
        r"tied|stale|embed|dense|not those",
        _own_head,
        "head",
    ),
    Fault(
        "embedding not scaled",
        "gemma2",
        (r"model\.embed_tokens",),
        r"embed_scale|times what",
        attribute(r"model\.embed_tokens", embed_scale=torch.tensor(1.0)),
        "embedding",
    ),
    Fault(
        "embedding's scale rounded to bf16",
        "gemma2",
        (r"model\.embed_tokens",),
        r"embed_scale|times what|roundings",
        attribute(r"model\.embed_tokens", embed_scale=torch.tensor(8 * 55.5 / 3072**0.5)),
        "embedding",
        precision="f32",
    ),
    Fault(
        "scale of the head width",
        "gemma2",
        (_ATTENTION,),
        r"scaling|query_pre_attn|softmax scale",
        attribute(_ATTENTION, scaling=16**-0.5),
        "attention",
    ),
    Fault(
        "one rotary base for all layers",
        "gemma3",
        (r"model\.rotary_emb",),
        "theta|base|frequenc|rope",
        _one_base,
        "rotary",
    ),
    Fault(
        "norm after the feed-forward missing",
        "gemma3",
        (r"model\.layers\.1\.post_feedforward_layernorm", r"model\.layers\.1"),
        r"skip|comes out|missing|identity|not applied|has a factor of its own",
        _no_post_norm,
        "norm",
    ),
    Fault(
        "norms without their one",
        "gemma3",
        (r"model\.layers\.2\.input_layernorm",),
        r"channel has a factor|one taken off|constant 1 dropped",
        code(r"model\.layers\.2\.input_layernorm", forward=("(1.0 + self.weight.float())", "self.weight.float()")),
        "norm",
    ),
    Fault(
        "activation without its approximation",
        "gemma3",
        (r"model\.layers\.\d\.mlp(\.act_fn)?",),
        "gelu|act_fn|approx",
        attribute(r"model\.layers\.\d\.mlp", act_fn=lambda kept: nn.GELU()),
        "activation",
        precision="f32",
    ),
    Fault(
        "final norm in bf16",
        "gemma3",
        (r"model\.norm",),
        "bf16|round|precision",
        code(r"model\.norm", forward=("output = self._norm(x.float())", "output = self._norm(x.bfloat16()).float()")),
        "norm",
        precision="f32",
    ),
    Fault(
        "window one token short while decoding",
        "gemma3",
        (r"model\.layers\.[02]\.self_attn",),
        r"window|decod|cache|from position|page",
        operator="cache",
        meddling=Meddling(filled=_forgotten),
    ),
)
