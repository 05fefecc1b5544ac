"""Calls of operators for the check: sizes by the axes of their definitions, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Run = Callable[..., Any]


class Case(NamedTuple):
    """One call."""

    name: str
    """What it shows."""
    operator: str
    """Name of the definition."""
    axes: Mapping[str, float]
    """Lengths, see the definition."""
    roundings: int
    """Intermediate results that are rounded to the dtype on the way."""
    inputs: Callable[[torch.Generator, torch.dtype], tuple[Any, ...]]
    """Tensors on the host."""
    run: Run
    """The call."""


def _normal(*shape: int) -> Callable[[torch.Generator, torch.dtype], torch.Tensor]:
    return lambda generator, dtype: torch.randn(shape, generator=generator).to(dtype)


def _whole(*shapes: tuple[int, ...]) -> Callable[[torch.Generator, torch.dtype], tuple[Any, ...]]:
    return lambda generator, dtype: tuple(_normal(*shape)(generator, dtype) for shape in shapes)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def _eager(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    tokens = query.shape[-2]
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    made: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
    return made


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def _route(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores are multiples of 1/8 that all differ: rounding changes no choice."""
    top = logits.float().softmax(-1).to(logits.dtype).topk(2, dim=-1)
    return top.values, top.indices


def _distinct(generator: torch.Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    rows = [torch.randperm(16, generator=generator) for _ in range(32)]
    return ((torch.stack(rows) / 8).to(dtype),)


def _experts(rows: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """[tokens, hidden]: each token through the matrices of its experts, by gathering rows and adding them up."""
    out = torch.zeros(rows.shape[0], weights.shape[1], dtype=rows.dtype, device=rows.device)
    for expert in range(weights.shape[0]):
        where, _ = torch.where(chosen == expert)
        out.index_add_(0, where, rows[where] @ weights[expert].T)
    return out


def _chosen(generator: torch.Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    picks = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(32)])
    return *_whole((32, 64), (8, 64, 64))(generator, dtype), picks


def _turned(generator: torch.Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    angles = torch.arange(32.0)[:, None] * 10000 ** (-torch.arange(0, 32.0, 2) / 32)
    return _normal(2, 32, 4, 32)(generator, dtype), angles.cos().to(dtype), angles.sin().to(dtype)


def _delta(generator: torch.Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    query, key, value = _whole((2, 40, 2, 16), (2, 40, 2, 16), (2, 40, 2, 16))(generator, dtype)
    decay = -torch.rand(2, 40, 2, generator=generator)
    return query, key, value, decay.to(dtype), torch.rand(2, 40, 2, generator=generator).to(dtype)


def _scan(generator: torch.Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    x, dt, b, c = _whole((2, 32, 24), (2, 32, 24), (2, 8, 24), (2, 8, 24))(generator, dtype)
    return x, dt, -torch.rand(32, 8, generator=generator).to(dtype) - 0.1, b, c


def _op(name: str) -> Any:
    return getattr(torch.ops.dayzero, name)


_HEADS = {"sequences": 2, "tokens": 32, "context": 0, "window": float("inf"), "keys": 32, "heads": 4, "head_dim": 32,
          "v_head_dim": 32}
_STATE = {"sequences": 2, "tokens": 40, "heads": 2, "head_dim": 16, "v_head_dim": 16, "chunk": 16}
CASES = (
    Case("linear", "linear", {"tokens": 48, "inner": 512, "outer": 96, "groups": 1}, 1,
         _whole((48, 512), (96, 512)), functional.linear),
    Case("linear with bias", "linear", {"tokens": 48, "inner": 512, "outer": 96, "groups": 1}, 1,
         _whole((48, 512), (96, 512), (96,)), functional.linear),
    Case("matmul", "matmul", {"products": 6, "tokens": 32, "inner": 64, "outer": 48}, 1,
         _whole((6, 32, 64), (6, 64, 48)), torch.matmul),
    Case("embedding", "embedding", {"tokens": 3, "hidden": 64}, 1,
         lambda generator, dtype: (torch.tensor([[5, 0, 99]]), _normal(100, 64)(generator, dtype)),
         functional.embedding),
    Case("norm", "norm", {"tokens": 32, "hidden": 128}, 2, _whole((32, 128), (128,)),
         lambda x, weight: _op("norm")(x, weight, None, None, None, 1e-6, True, "", False, 1, 0.0, False)[0]),
    Case("norm, fused", "norm", {"tokens": 32, "hidden": 128}, 2, _whole((32, 128), (128,)),
         lambda x, weight: functional.rms_norm(x, (128,), weight, 1e-6)),
    Case("attention", "attention", {**_HEADS, "kv_heads": 2}, 3,
         _whole((2, 4, 32, 32), (2, 2, 32, 32), (2, 2, 32, 32)), _attention),
    Case("attention, eager", "attention", {**_HEADS, "kv_heads": 4}, 5, _whole(*(((2, 4, 32, 32),) * 3)), _eager),
    Case("rotary", "rotary", {"tokens": 64, "heads": 4, "turned": 32, "table": 0}, 2, _turned,
         lambda x, cos, sin: _op("rotary")(x, cos, sin, None, 0, None, False)),
    Case("gate", "elementwise", {"elements": 2048, "operands": 2, "operations": 6}, 3, _whole((32, 64), (32, 64)),
         _gated),
    Case("router", "router", {"tokens": 32, "hidden": 16, "experts": 16}, 2, _distinct, _route),
    Case("experts", "experts", {"tokens": 32, "experts": 8, "top_k": 2, "matrices": 1, "hidden": 64, "width": 64}, 3,
         _chosen, _experts),
    Case("experts, grouped", "experts",
         {"tokens": 32, "experts": 4, "top_k": 1, "matrices": 1, "hidden": 64, "width": 64}, 1,
         lambda generator, dtype: (*_whole((32, 64), (4, 64, 64))(generator, dtype), torch.tensor([8, 0, 20, 4])),
         lambda rows, weights, sizes: _op("grouped_gemm")(rows, weights, sizes, False)),
    Case("convolution", "convolution", {"sequences": 2, "tokens": 29, "channels": 32, "inner": 1, "kernel": 4}, 1,
         _whole((2, 32, 32), (32, 1, 4)), lambda x, weight: functional.conv1d(x, weight, groups=32)),
    Case("linear attention", "linear_attention", _STATE, 4, _delta,
         lambda q, k, v, g, beta: _op("delta_rule")(q, k, v, g, beta, 0.25, None, None, 16, False, True, False, None,
                                                    None, None, False, False)),
    Case("gated linear attention", "gated_linear_attention", _STATE, 3, _delta,
         lambda q, k, v, g, beta: _op("linear_attention")(q, k, v, g, 0.25, None, None, 16, False)),
    Case("state space", "state_space", {"sequences": 2, "tokens": 24, "heads": 32, "head_dim": 1, "groups": 1,
                                        "state_dim": 8, "chunk": 1}, 3, _scan,
         lambda x, dt, a, b, c: _op("selective_scan")(x, dt, a, b, c, None, None, None, True)),
    Case("sampling", "sampling", {"tokens": 32, "vocab": 16}, 0, _distinct, lambda scores: scores.argmax(-1)),
    Case("cache", "copy", {"elements": 2048}, 1,
         lambda generator, dtype: (*_whole((64, 64), (8, 64))(generator, dtype), torch.arange(0, 64, 8)),
         lambda cache, rows, places: cache.index_copy(0, places, rows)),
)  # fmt: skip
