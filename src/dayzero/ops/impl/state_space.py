"""State spaces with an input-dependent step: Mamba's scan (a decay for each channel and element of the state) and
Mamba-2's (a decay for each head), which is linear attention with query c, key b, value dt x and log decay dt a."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import silu, softplus

from dayzero.ops.definition import OPERATORS

from .linear_attention import run
from .register import operator


def step_size(dt: torch.Tensor, bias: torch.Tensor | None, soft: bool, low: float, high: float) -> torch.Tensor:
    """The step in fp32 from its raw value; `bias` has as many values as the last axis."""
    wide = dt.float() if bias is None else dt.float() + bias.float()
    wide = softplus(wide) if soft else wide
    return wide.clamp(low, high)


def _scan_shapes(x: torch.Tensor, dt: Any, a: torch.Tensor, *_: Any) -> Any:
    state = x.new_empty(x.shape[0], x.shape[1], a.shape[1], dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), state


def _scan_flops(x: torch.Tensor, dt: Any, a: torch.Tensor, *_: Any) -> float:
    batch, channels, tokens = x.shape
    return OPERATORS.get("state_space").flops({
        "sequences": batch, "tokens": tokens, "heads": channels, "head_dim": 1, "groups": 1, "state_dim": a.shape[1],
        "chunk": 1})  # fmt: skip


@operator("selective_scan(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? gate, Tensor? dt_bias, "
          "bool soft) -> (Tensor, Tensor)",
          shapes=_scan_shapes, flops=_scan_flops)  # fmt: skip
def selective_scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor | None,
    gate: torch.Tensor | None, dt_bias: torch.Tensor | None, soft: bool,
) -> Any:  # fmt: skip
    """Input and step [B, D, T], a [D, N], b and c [D, N], [B, N, T] or [B, G, N, T], d [D], gate [B, D, T]. Output
    [B, D, T] in the input's dtype and the last state [B, D, N] in fp32."""
    tokens = x.shape[2]
    size = step_size(dt.transpose(1, 2), dt_bias, soft, 0.0, float("inf"))
    into, outof = (_each_token(each, x) for each in (b, c))
    state = x.new_zeros(x.shape[0], x.shape[1], a.shape[1], dtype=torch.float32)
    out = torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)
    for t in range(tokens):
        now = size[:, t, :, None]
        state = state * (now * a.float()).exp() + now * into[..., t] * x[:, :, t, None].float()
        out[:, :, t] = (state * outof[..., t]).sum(-1)
    if d is not None:
        out = out + x.float() * d.float()[:, None]
    if gate is not None:
        out = out * silu(gate.float())
    return out.to(x.dtype), state


def _each_token(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[B or 1, D, N, T] in fp32."""
    wide = matrix.float()
    if wide.dim() == 2:
        return wide[None, :, :, None].expand(-1, -1, -1, x.shape[2])
    if wide.dim() == 3:
        return wide[:, None]
    return wide.repeat_interleave(x.shape[1] // wide.shape[1], dim=1)


def _chunked_shapes(x: torch.Tensor, dt: Any, a: Any, b: torch.Tensor, c: Any, d: Any, gate: Any, dt_bias: Any,
                    state: Any, cu_seqlens: torch.Tensor | None, *_: Any) -> Any:  # fmt: skip
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    last = x.new_empty(sequences, x.shape[2], x.shape[3], b.shape[-1], dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), last


def _chunked_flops(x: torch.Tensor, dt: Any, a: Any, b: torch.Tensor, c: Any, d: Any, gate: Any, dt_bias: Any,
                   state: Any, cu_seqlens: torch.Tensor | None, chunk: int, *_: Any) -> float:  # fmt: skip
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return OPERATORS.get("state_space").flops({
        "sequences": sequences, "tokens": x.shape[0] * x.shape[1] / sequences, "heads": x.shape[2],
        "head_dim": x.shape[3], "groups": b.shape[-2], "state_dim": b.shape[-1], "chunk": chunk})  # fmt: skip


@operator("state_space(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? gate, Tensor? dt_bias, "
          "Tensor? state, Tensor? cu_seqlens, int chunk, bool soft, float low, float high) -> (Tensor, Tensor)",
          shapes=_chunked_shapes, flops=_chunked_flops)  # fmt: skip
def state_space(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor | None,
    gate: torch.Tensor | None, dt_bias: torch.Tensor | None, state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None, chunk: int, soft: bool, low: float, high: float,
) -> Any:  # fmt: skip
    """Input [B, T, H, P], step [B, T, H], a [H], b and c [B, T, G, N], d [H] or [H, P], gate [B, T, H, P], state
    [n, H, P, N]. Output [B, T, H, P] in the input's dtype and the last states in fp32. The step is kept in
    [low, high]."""
    size = step_size(dt, dt_bias, soft, low, high)
    out, last = run(c, b, x.float() * size[..., None], size * a.float(), None, 1.0, state, cu_seqlens, chunk, True)
    if d is not None:
        out = out + x.float() * (d.float()[:, None] if d.dim() == 1 else d.float())
    if gate is not None:
        out = out * silu(gate.float())
    return out.to(x.dtype), last


def _update_shapes(state: torch.Tensor, x: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _update_flops(state: torch.Tensor, x: torch.Tensor, dt: Any, a: Any, b: torch.Tensor, *_: Any) -> float:
    return OPERATORS.get("state_space").flops({
        "sequences": x.shape[0], "tokens": 1, "heads": x.shape[1], "head_dim": x.shape[2], "groups": b.shape[1],
        "state_dim": b.shape[2], "chunk": 1})  # fmt: skip


@operator("state_space_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, "
          "Tensor? gate, Tensor? dt_bias, bool soft) -> Tensor",
          shapes=_update_shapes, flops=_update_flops)  # fmt: skip
def state_space_update(
    state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    d: torch.Tensor | None, gate: torch.Tensor | None, dt_bias: torch.Tensor | None, soft: bool,
) -> Any:  # fmt: skip
    """One token of each sequence; the state [B, H, P, N] is changed in place. Input, step and gate [B, H, P], a
    [H, P, N], b and c [B, G, N], d and dt_bias [H, P]. Output [B, H, P]."""
    size = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    size = (softplus(size) if soft else size)[..., None]
    group = x.shape[1] // b.shape[1]
    into, outof = (each.float().repeat_interleave(group, dim=1)[:, :, None] for each in (b, c))
    now = state.float() * (size * a.float()).exp() + size * into * x.float()[..., None]
    state.copy_(now)
    out = (now * outof).sum(-1)
    if d is not None:
        out = out + x.float() * d.float()
    if gate is not None:
        out = out * silu(gate.float())
    return out.to(x.dtype)
