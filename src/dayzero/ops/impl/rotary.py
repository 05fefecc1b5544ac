"""Rotary position embedding from tables of cosines and sines."""

from __future__ import annotations

from typing import Any

import torch

from dayzero.ops.definition import OPERATORS

from .register import lengths, operator


def _rows(x: torch.Tensor, cos: torch.Tensor, offsets: torch.Tensor | None, offset: int,
          cu_seqlens: torch.Tensor | None) -> torch.Tensor:  # fmt: skip
    """Row of the table for each token: [T] or [B, T], or [total] of packed sequences."""
    if cu_seqlens is None:
        at = torch.arange(x.shape[1], device=x.device) + offset
        return at if offsets is None else at + offsets[:, None].long()
    starts = [offset] * (cu_seqlens.shape[0] - 1) if offsets is None else offsets.tolist()
    sizes = lengths(cu_seqlens, x.shape[0])
    return torch.cat([torch.arange(size, device=x.device) + int(start)
                      for size, start in zip(sizes, starts, strict=True)])


def _flops(x: torch.Tensor, cos: torch.Tensor, *_: Any) -> float:
    heads = x.shape[-2]
    tokens = x.numel() / (heads * x.shape[-1]) if x.numel() else 0.0
    return OPERATORS.get("rotary").flops({"tokens": tokens, "heads": heads, "turned": 2 * cos.shape[-1], "table": 0})


@operator("rotary(Tensor x, Tensor cos, Tensor sin, Tensor? offsets, int offset, Tensor? cu_seqlens, "
          "bool interleaved) -> Tensor",
          shapes=lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
          flops=_flops)  # fmt: skip
def rotary(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, offsets: torch.Tensor | None, offset: int,
    cu_seqlens: torch.Tensor | None, interleaved: bool,
) -> Any:  # fmt: skip
    """x [B, T, H, D], or [total, H, D] with offsets of packed sequences; tables [S, R / 2] (or [B, S, R / 2]) for the
    first R of D values. Pairs are two neighbours (`interleaved`) or a value and the one half of R further. Sequences
    start at row `offset`, or at `offsets` [B] of it."""
    half = cos.shape[-1]
    rows = _rows(x, cos, offsets, offset, cu_seqlens)
    if cos.dim() == 3:
        c, s = cos[:, :x.shape[1]], sin[:, :x.shape[1]]
    else:
        c, s = cos[rows], sin[rows]
    c, s = c.float()[..., None, :], s.float()[..., None, :]
    turned, rest = x[..., :2 * half].float(), x[..., 2 * half:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        mixed = torch.stack([first * c - second * s, second * c + first * s], dim=-1).flatten(-2)
    else:
        first, second = turned[..., :half], turned[..., half:]
        mixed = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    return torch.cat([mixed.to(x.dtype), rest], dim=-1)
