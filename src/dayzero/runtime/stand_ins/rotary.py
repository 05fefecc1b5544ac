"""Stand-ins for fused rotary embedding (of flash_attn and fla)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dayzero.ops import impl

from .recording import unsupported


def apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0, cu_seqlens: torch.Tensor | None = None, max_seqlen: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotated x [B, T, H, D], or [total, H, D] of packed sequences; written over x when `inplace`."""
    offsets, offset = (None, seqlen_offsets) if isinstance(seqlen_offsets, int) else (seqlen_offsets, 0)
    out: torch.Tensor = impl.rotary.rotary(x, cos, sin, offsets, offset, cu_seqlens, interleaved)
    return x.copy_(out) if inplace else out


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cos_k: torch.Tensor | None = None,
    sin_k: torch.Tensor | None = None, interleaved: bool = False, seqlen_offsets: int | torch.Tensor = 0,
    num_heads_q: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Queries and keys of [B, T, 3, H, D], or of [B, T, heads, D] with `num_heads_q` queries, rotated in place."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        queries = num_heads_q or 0
        q, k = qkv[:, :, :queries], qkv[:, :, queries:(qkv.shape[2] + queries) // 2]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True,
                     seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(
    kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
) -> torch.Tensor:  # fmt: skip
    """Keys of [B, T, 2, H, D] rotated in place."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


class _Tables(nn.Module):
    """Cosines and sines of all positions up to the longest that was asked for."""

    inv_freq: torch.Tensor

    def __init__(self, dim: int, base: float, interleaved: bool, device: Any) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        rates = 1.0 / base ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", rates, persistent=False)

    def tables(self, length: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[length, dim / 2] each, in the dtype of `like`."""
        at = torch.arange(length, device=like.device, dtype=torch.float32)
        angles = torch.outer(at, self.inv_freq.to(like.device, torch.float32))
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def length(self, tokens: int, offset: int | torch.Tensor, longest: int | None) -> int:
        """Rows that the tables need."""
        if longest is not None:
            return longest
        if isinstance(offset, int):
            return tokens + offset
        return tokens + (0 if offset.device.type == "meta" else int(offset.max()))


class FlaRotaryEmbedding(_Tables):
    """Of query and key [B, T, H, D]."""

    def __init__(self, dim: int, base: float = 10000.0, scale_base: float | None = None, interleaved: bool = False,
                 pos_idx_in_fp32: bool = True, device: Any = None) -> None:  # fmt: skip
        unsupported(scale_base=scale_base)
        super().__init__(dim, base, interleaved, device)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, seqlen_offset: int | torch.Tensor = 0,
        cu_seqlens: torch.Tensor | None = None, max_seqlen: int | None = None, chunk_indices: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Both, rotated. Packed sequences have B = 1."""
        cos, sin = self.tables(self.length(q.shape[1], seqlen_offset, max_seqlen), q)
        if cu_seqlens is None:
            return tuple(apply_rotary_emb(x, cos, sin, self.interleaved, seqlen_offsets=seqlen_offset)
                         for x in (q, k))  # type: ignore[return-value]
        return tuple(apply_rotary_emb(x[0], cos, sin, self.interleaved, False, seqlen_offset, cu_seqlens)[None]
                     for x in (q, k))  # type: ignore[return-value]


class FlashRotaryEmbedding(_Tables):
    """Of packed qkv, or of queries and packed kv, in place."""

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
                 pos_idx_in_fp32: bool = True, device: Any = None) -> None:  # fmt: skip
        unsupported(scale_base=scale_base)
        super().__init__(dim, base, interleaved, device)

    def forward(
        self, qkv: torch.Tensor, kv: torch.Tensor | None = None, seqlen_offset: int | torch.Tensor = 0,
        max_seqlen: int | None = None, num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        """qkv [B, T, 3, H, D], or query [B, T, H, D] and kv [B, S, 2, G, D]; the same, rotated."""
        cos, sin = self.tables(self.length(qkv.shape[1], seqlen_offset, max_seqlen), qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, None, None, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
