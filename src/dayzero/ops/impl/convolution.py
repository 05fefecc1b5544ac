"""Causal convolution along the tokens, each channel by itself, a few taps wide: what precedes a constant state.

Input [B, T, D], weight [D, W], W the taps; state [N, D, S]: the last S inputs, oldest first, S >= W - 1. Packed
sequences have B = 1 and offsets [N + 1].
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import conv1d

from dayzero.ops.definition import OPERATORS

from .register import activate, lengths, operator


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, activation: str
) -> torch.Tensor:
    """[n, T, D] in fp32 from inputs [n, T, D] and what came before [n, D, W - 1]."""
    wide = torch.cat([history.float(), x.float().transpose(1, 2)], dim=-1)
    out = conv1d(wide, weight.float()[:, None], None if bias is None else bias.float(), groups=weight.shape[0])
    return activate(out.transpose(1, 2), activation)


def _shapes(x: torch.Tensor, weight: torch.Tensor, bias: Any, state: Any, cu_seqlens: torch.Tensor | None,
            residual: Any, activation: str, kept: int) -> Any:  # fmt: skip
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(sequences, x.shape[2], kept)


def _flops(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> float:
    return OPERATORS.get("convolution").flops({
        "sequences": x.shape[0], "tokens": x.shape[1], "channels": x.shape[2], "inner": 1,
        "kernel": weight.shape[1]})  # fmt: skip


@operator("convolution(Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? cu_seqlens, Tensor? residual, "
          "str activation, int kept) -> (Tensor, Tensor)",
          shapes=_shapes, flops=_flops)  # fmt: skip
def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None, residual: torch.Tensor | None, activation: str, kept: int,
) -> Any:  # fmt: skip
    """Output [B, T, D] in the input's dtype, `residual` added after the activation, and the state of the last `kept`
    inputs. A missing state is zeros."""
    out, states = _shapes(x, weight, bias, state, cu_seqlens, residual, activation, kept)
    taps, channels = weight.shape[1] - 1, x.shape[2]
    if cu_seqlens is None:
        spans = [(i, 0, x.shape[1]) for i in range(x.shape[0])]
    else:
        ends = torch.tensor([0, *lengths(cu_seqlens, x.shape[1])]).cumsum(0).tolist()
        spans = [(0, start, end) for start, end in pairwise(ends)]
    for n, (row, start, end) in enumerate(spans):
        one = x[row, start:end]
        before = x.new_zeros(channels, max(taps, kept))
        if state is not None:
            width = min(before.shape[1], state.shape[2])
            before[:, before.shape[1] - width:] = state[n, :, state.shape[2] - width:]
        history = before[None, :, before.shape[1] - taps:]
        out[row, start:end] = convolve(one[None], weight, bias, history, activation)[0].to(x.dtype)
        past = torch.cat([before, one.transpose(0, 1)], dim=1)
        states[n] = past[:, past.shape[1] - kept:]
    return (out if residual is None else out + residual), states


def _update_shapes(x: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("convolution_update(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? filled, Tensor? rows, "
          "str activation) -> Tensor",
          shapes=_update_shapes, flops=lambda x, state, weight, *_: _flops(x, weight))  # fmt: skip
def convolution_update(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    filled: torch.Tensor | None, rows: torch.Tensor | None, activation: str,
) -> Any:  # fmt: skip
    """New tokens [B, T, D] of sequences whose state [N, D, S] is changed in place. `rows` [B]: which state a sequence
    has; negative: the sequence is padding and gives zeros. `filled` [B]: the state is a ring, and that many inputs were
    written to it before; without it the state is shifted."""
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    taps, room = weight.shape[1] - 1, state.shape[2]
    for i in range(x.shape[0]):
        row = i if rows is None else int(rows[i])
        if row < 0:
            continue
        own, new = state[row], x[i].transpose(0, 1).to(state.dtype)
        if filled is None:
            past = torch.cat([own, new], dim=1)
            history = own[:, room - taps:].clone()
            own.copy_(past[:, past.shape[1] - room:])
        else:
            start = int(filled[i])
            history = own[:, torch.arange(start - taps, start, device=x.device) % room].clone()
            own[:, torch.arange(start, start + new.shape[1], device=x.device) % room] = new
        out[i] = convolve(x[i][None], weight, bias, history[None], activation)[0].to(x.dtype)
    return out
