"""Softmax attention: batched, of packed sequences, and against a cache that it extends.

Query [B, T, H, D], key [B, S, G, D], value [B, S, G, E], H a multiple of G: query heads h * H / G and on use key head
h. A query sees the keys from `left` before its own position to `right` after it (-1: no limit); positions are aligned
at the end, so that the last query stands at the last key.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from dayzero.ops.definition import OPERATORS

from .register import lengths, operator

_OPTIONS = "float scale, bool causal, int left, int right, float softcap, Tensor? alibi"


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, causal: bool, left: int, right: int,
    softcap: float, alibi: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output [B, T, H, E] in the query's dtype and the logarithm of the softmax's denominator [B, H, T] in fp32. A
    query that sees no key gives zeros and infinity."""
    tokens, keys, heads = query.shape[1], key.shape[1], query.shape[2]
    group = heads // key.shape[2]
    k, v = (each.float().repeat_interleave(group, dim=2) for each in (key, value))
    scores = torch.einsum("bthd,bshd->bhts", query.float(), k) * scale
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    position = torch.arange(tokens, device=query.device)[:, None] + (keys - tokens)
    distance = position - torch.arange(keys, device=query.device)[None, :]
    if alibi is not None:
        slopes = alibi.float() if alibi.dim() == 2 else alibi.float()[None]
        scores = scores - slopes[:, :, None, None] * distance.abs()
    right = 0 if causal else right
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= distance < -right
    scores = scores.masked_fill(hidden, -inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -inf, 0.0)[..., None])
    out = torch.einsum("bhts,bshe->bthe", weights, v).to(query.dtype)
    return out, lse.masked_fill(lse == -inf, inf)


def pairs_flops(sequences: float, tokens: float, keys: float, heads: float, head_dim: float, v_head_dim: float,
                causal: bool, left: int, right: int) -> float:  # fmt: skip
    """Operations by the definition of `attention`. Without a limit to the right all keys are seen by every query: that
    is one new token for each of sequences * tokens queries."""
    limited = causal or right == 0
    window = inf if left < 0 else left + 1.0
    context = max(keys - tokens, 0.0) if limited else keys - 1
    axes = {"sequences": sequences if limited else sequences * tokens, "tokens": tokens if limited else 1.0,
            "context": context, "window": window if limited else inf, "heads": heads, "head_dim": head_dim,
            "v_head_dim": v_head_dim}  # fmt: skip
    return OPERATORS.get("attention").flops(axes)


def _empty(query: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch, tokens, heads = query.shape[:3]
    return (query.new_empty(batch, tokens, heads, value.shape[-1]),
            query.new_empty(batch, heads, tokens, dtype=torch.float32))


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    return _empty(query, value)


def _flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, causal: bool, left: int,
           right: int, softcap: float = 0.0, alibi: Any = None) -> float:  # fmt: skip
    batch, tokens, heads, dim = query.shape
    return pairs_flops(batch, tokens, key.shape[1], heads, dim, value.shape[-1], causal, left, right)


@operator(f"attention(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor, Tensor)",
          shapes=_shapes, flops=_flops)  # fmt: skip
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options: Any) -> Any:
    """Sequences of equal length; results as `attend`."""
    return attend(query, key, value, *options)


def _packed_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    total, heads = query.shape[:2]
    return (query.new_empty(total, heads, value.shape[-1]), query.new_empty(heads, total, dtype=torch.float32))


def _packed_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_query: torch.Tensor,
                  cu_key: torch.Tensor, block_table: torch.Tensor | None, scale: float, causal: bool, left: int,
                  right: int, softcap: float = 0.0, alibi: Any = None) -> float:  # fmt: skip
    total = key.shape[0] if block_table is None else block_table.numel() * key.shape[1]
    sides = zip(lengths(cu_query, query.shape[0]), lengths(cu_key, total), strict=True)
    return sum(pairs_flops(1, t, s, query.shape[1], query.shape[2], value.shape[-1], causal, left, right)
               for t, s in sides)


def _paged(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` rows of a sequence whose rows lie in blocks [n, size, ...], in this order."""
    return cache[blocks.long()].flatten(0, 1)[:length]


@operator("attention_varlen(Tensor query, Tensor key, Tensor value, Tensor cu_query, Tensor cu_key, "
          f"Tensor? block_table, {_OPTIONS}) -> (Tensor, Tensor)",
          shapes=_packed_shapes, flops=_packed_flops)  # fmt: skip
def attention_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_query: torch.Tensor, cu_key: torch.Tensor,
    block_table: torch.Tensor | None, scale: float, causal: bool, left: int, right: int, softcap: float,
    alibi: torch.Tensor | None,
) -> Any:  # fmt: skip
    """Sequences one behind the other: query [total, H, D], key and value [total, G, D], or blocks [n, size, G, D] that
    `block_table` [sequences, n] names; offsets [sequences + 1]. Results [total, H, E] and [H, total]."""
    out, lse = _packed_shapes(query, key, value)
    start_q = start_k = 0
    sizes = zip(lengths(cu_query, query.shape[0]), lengths(cu_key, key.shape[0]), strict=True)
    for i, (tokens, keys) in enumerate(sizes):
        rows = slice(start_q, start_q + tokens)
        if block_table is None:
            k, v = key[start_k:start_k + keys], value[start_k:start_k + keys]
        else:
            k, v = _paged(key, block_table[i], keys), _paged(value, block_table[i], keys)
        slopes = alibi[i] if alibi is not None and alibi.dim() == 2 else alibi
        one, one_lse = attend(query[rows][None], k[None], v[None], scale, causal, left, right, softcap, slopes)
        out[rows], lse[:, rows] = one[0], one_lse[0]
        start_q, start_k = start_q + tokens, start_k + keys
    return out, lse


def _cached_shapes(query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, *_: Any) -> Any:
    return _empty(query, value_cache)


def _cached_flops(query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, key: torch.Tensor | None,
                  value: torch.Tensor | None, filled: torch.Tensor | None, rows: torch.Tensor | None,
                  block_table: torch.Tensor | None, scale: float, causal: bool, left: int, right: int,
                  softcap: float = 0.0, alibi: Any = None) -> float:  # fmt: skip
    """Without values the caches are taken to be full."""
    batch, tokens, heads, dim = query.shape
    new = 0 if key is None else key.shape[1]
    room = key_cache.shape[1] if block_table is None else block_table.shape[1] * key_cache.shape[1]
    known = filled is not None and filled.device.type != "meta"
    seen = [int(n) + new for n in filled.tolist()] if known and filled is not None else [room] * batch
    return sum(pairs_flops(1, tokens, keys, heads, dim, value_cache.shape[-1], causal, left, right) for keys in seen)


@operator("attention_cached(Tensor query, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor? key, Tensor? value, "
          f"Tensor? filled, Tensor? rows, Tensor? block_table, {_OPTIONS}) -> (Tensor, Tensor)",
          shapes=_cached_shapes, flops=_cached_flops)  # fmt: skip
def attention_cached(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, key: torch.Tensor | None,
    value: torch.Tensor | None, filled: torch.Tensor | None, rows: torch.Tensor | None,
    block_table: torch.Tensor | None, scale: float, causal: bool, left: int, right: int, softcap: float,
    alibi: torch.Tensor | None,
) -> Any:  # fmt: skip
    """New queries [B, T, H, D] against caches [rows, S, G, D], or blocks [n, size, G, D] of `block_table`. `filled` [B]
    keys of each sequence are there before (None: all S); new keys and values are written behind them. `rows` [B] says
    which row of the cache a sequence has."""
    out, lse = _empty(query, value_cache)
    for i in range(query.shape[0]):
        row = i if rows is None else int(rows[i])
        paged = block_table is not None
        before = int(filled[i]) if filled is not None else key_cache.shape[1]
        caches = []
        for cache, new in ((key_cache, key), (value_cache, value)):
            if new is not None:
                _append(cache, new[i], before, row, block_table[i] if block_table is not None else None)
            total = before + (0 if new is None else new.shape[1])
            caches.append(_paged(cache, block_table[i], total) if paged and block_table is not None
                          else cache[row, :total])
        slopes = alibi[i] if alibi is not None and alibi.dim() == 2 else alibi
        one, one_lse = attend(query[i:i + 1], caches[0][None], caches[1][None], scale, causal, left, right, softcap,
                              slopes)
        out[i], lse[i] = one[0], one_lse[0]
    return out, lse


def _append(cache: torch.Tensor, new: torch.Tensor, before: int, row: int, blocks: torch.Tensor | None) -> None:
    if blocks is None:
        cache[row, before:before + new.shape[0]] = new
        return
    size = cache.shape[1]
    at = torch.arange(before, before + new.shape[0], device=cache.device)
    cache[blocks.long()[at // size], at % size] = new


def _latent_shapes(query: torch.Tensor, cache: torch.Tensor, block_table: Any, filled: Any, v_dim: int, *_: Any) -> Any:
    batch, tokens, heads = query.shape[:3]
    return (query.new_empty(batch, tokens, heads, v_dim), query.new_empty(batch, heads, tokens, dtype=torch.float32))


def _latent_flops(query: torch.Tensor, cache: torch.Tensor, block_table: torch.Tensor | None,
                  filled: torch.Tensor | None, v_dim: int, scale: float, causal: bool) -> float:  # fmt: skip
    batch, tokens, heads, dim = query.shape
    room = cache.shape[1] if block_table is None else block_table.shape[1] * cache.shape[1]
    known = filled is not None and filled.device.type != "meta"
    seen = [int(n) for n in filled.tolist()] if known and filled is not None else [room] * batch
    definition = OPERATORS.get("latent_attention")
    return sum(definition.flops({
        "sequences": 1.0, "tokens": float(tokens), "context": float(keys - tokens), "heads": float(heads),
        "latent_dim": float(dim), "kv_rank": float(v_dim), "absorbed": 1.0}) for keys in seen)  # fmt: skip


@operator("latent_attention(Tensor query, Tensor cache, Tensor? block_table, Tensor? filled, int v_dim, float scale, "
          "bool causal) -> (Tensor, Tensor)",
          shapes=_latent_shapes, flops=_latent_flops)  # fmt: skip
def latent_attention(
    query: torch.Tensor, cache: torch.Tensor, block_table: torch.Tensor | None, filled: torch.Tensor | None,
    v_dim: int, scale: float, causal: bool,
) -> Any:  # fmt: skip
    """Queries [B, T, H, D] against cached latents, blocks [n, size, 1, D] of `block_table` [B, n] or [B, S, 1, D]: all
    heads share them, and their first `v_dim` values are the value. Results [B, T, H, v_dim] and [B, H, T]."""
    out, lse = _latent_shapes(query, cache, None, None, v_dim)
    for i in range(query.shape[0]):
        length = int(filled[i]) if filled is not None else cache.shape[1]
        rows = cache[i, :length] if block_table is None else _paged(cache, block_table[i], length)
        one, one_lse = attend(query[i:i + 1], rows[None], rows[None, ..., :v_dim], scale, causal, -1, -1, 0.0, None)
        out[i], lse[i] = one[0], one_lse[0]
    return out, lse
