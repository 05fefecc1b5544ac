"""Stand-ins for fused softmax attention (of flash_attn and its third version, of xformers, and of flash_mla for latent
attention)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from dayzero.ops import impl

from .recording import missing, unsupported
from .rotary import apply_rotary_emb


def _scale(q: torch.Tensor, softmax_scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of [B, T, H, D]."""
    unsupported(dropout_p=dropout_p)
    out, lse = impl.attention.attention(q, k, v, _scale(q, softmax_scale), causal, *window_size, softcap, alibi_slopes)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Key and value in one tensor [B, S, 2, G, D]."""
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """All three in one tensor [B, T, 3, H, D]."""
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention of packed sequences [total, H, D]."""
    unsupported(dropout_p=dropout_p)
    out, lse = impl.attention.attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, block_table, _scale(q, softmax_scale), causal, *window_size, softcap,
        alibi_slopes)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Packed sequences, key and value in one tensor [total, 2, G, D]."""
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Packed sequences, all three in one tensor [total, 3, H, D]."""
    return flash_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
    v: torch.Tensor | None = None, rotary_cos: torch.Tensor | None = None, rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None, cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None, block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """New queries against a cache, which new keys and values are written to first."""
    unsupported(cache_leftpad=cache_leftpad)
    filled = cache_seqlens
    if isinstance(filled, int):
        filled = torch.full((q.shape[0],), filled, dtype=torch.int32, device=q.device)
    if rotary_cos is not None and rotary_sin is not None and k is not None:
        at = 0 if filled is None else filled
        k = apply_rotary_emb(k, rotary_cos, rotary_sin, rotary_interleaved, seqlen_offsets=at)
        if causal or window_size != (-1, -1):
            q = apply_rotary_emb(q, rotary_cos, rotary_sin, rotary_interleaved, seqlen_offsets=at)
        else:  # every query stands at the same place
            q = apply_rotary_emb(q.flatten(1, 2)[:, None], rotary_cos, rotary_sin, rotary_interleaved,
                                 seqlen_offsets=at).view(q.shape)
    out, lse = impl.attention.attention_cached(
        q, k_cache, v_cache, k, v, filled, cache_batch_idx, block_table, _scale(q, softmax_scale), causal,
        *window_size, softcap, alibi_slopes)
    return (out, lse) if return_softmax_lse else out


def get_mla_metadata(*_args: Any, **_kwargs: Any) -> tuple[None, None]:
    """A kernel's schedule: there is none here."""
    return None, None


def flash_mla_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor | None, cache_seqlens: torch.Tensor | None,
    head_dim_v: int, tile_scheduler_metadata: Any, num_splits: Any = None, softmax_scale: float | None = None,
    causal: bool = False, is_fp8_kvcache: bool = False, indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None, extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None, topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Queries [B, T, H, D] against paged latents [blocks, size, 1, D], whose first `head_dim_v` are the value."""
    unsupported(is_fp8_kvcache=is_fp8_kvcache, indices=indices,
                attn_sink=attn_sink, extra_k_cache=extra_k_cache)
    result: tuple[torch.Tensor, torch.Tensor] = impl.attention.latent_attention(
        q, k_cache, block_table, cache_seqlens, head_dim_v, _scale(q, softmax_scale), causal)
    return result


def flash_3_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
    qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of [B, T, H, D], third version: the denominator is all that comes with it."""
    unsupported(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    out, lse = impl.attention.attention(q, k, v, _scale(q, softmax_scale), causal, *window_size, softcap, None)
    return (out, lse) if return_attn_probs else out


def flash_3_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, seqused_q: torch.Tensor | None = None, seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of packed sequences, third version."""
    unsupported(seqused_q=seqused_q, seqused_k=seqused_k, qv=qv, q_descale=q_descale, k_descale=k_descale,
                v_descale=v_descale, attention_chunk=attention_chunk)
    out, lse = impl.attention.attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, None, _scale(q, softmax_scale),
                                               causal, *window_size, softcap, None)
    return (out, lse) if return_attn_probs else out


class LowerTriangularMask:
    """A causal mask, aligned at the first token."""


def memory_efficient_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any = None, p: float = 0.0,
    scale: float | None = None, *, op: Any = None, output_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of [B, T, H, D] with no mask, a causal one, or a bias [B, H, T, S] to add."""
    unsupported(p=p)
    causal = isinstance(attn_bias, LowerTriangularMask)
    if isinstance(attn_bias, torch.Tensor):
        out = scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                                           attn_bias, scale=scale).transpose(1, 2)
    elif attn_bias is None or (causal and query.shape[1] == key.shape[1]):
        out = impl.attention.attention(query, key, value, _scale(query, scale), causal, -1, -1, 0.0, None)[0]
    else:
        raise missing(f"attention with a bias of {type(attn_bias).__name__}")
    return out if output_dtype is None else out.to(output_dtype)
