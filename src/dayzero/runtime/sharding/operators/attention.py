"""Attention in one operator: each rank computes its heads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dayzero.runtime.sharding.sharded import Run, Sharded, local, mine, placed, shared, whole

HEADS = -3
"""Dimension of heads: [batch, heads, tokens, width]."""


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in names[:3])
    mask = given.get("attn_mask")
    by = next(each for each in (query, key, value, mask) if isinstance(each, Sharded))
    heads, ranks = query.shape[HEADS], by.group.size
    cut = all(each.segments == (each.shape[HEADS],) and each.dim_ == each.dim() + HEADS
              for each in (query, key, value, mask) if isinstance(each, Sharded))
    if not cut or heads % ranks or any(each.shape[HEADS] not in (1, heads) and not given.get("enable_gqa")
                                       for each in (key, value)):
        by.group.whole["scaled_dot_product_attention"] += 1
        return func(**{name: whole(each) for name, each in given.items()})
    made = dict(given)
    made["query"] = _part(query, by)
    for name in ("key", "value"):
        made[name] = _keys(given[name], heads, by)
    made["enable_gqa"] = made["key"].shape[HEADS] not in (1, made["query"].shape[HEADS])
    if mask is not None:
        made["attn_mask"] = _part(mask, by) if mask.dim() > 2 and mask.shape[HEADS] > 1 else local(mask)
    out = func(**made)
    return placed(out, out.dim() + HEADS, (heads,), by.group)


def _part(value: torch.Tensor, by: Sharded) -> torch.Tensor:
    """A rank's own heads."""
    if isinstance(value, Sharded):
        return local(value)  # type: ignore[no-any-return]
    return mine(value, value.dim() + HEADS, (value.shape[HEADS],), by.group)


def _keys(value: torch.Tensor, heads: int, by: Sharded) -> torch.Tensor:
    """The key or value heads that a rank's own query heads look at."""
    count, ranks = value.shape[HEADS], by.group.size
    if isinstance(value, Sharded) or count % ranks == 0:
        return _part(value, by)
    value = shared(value, by.group)
    if count == 1:
        return value
    own = heads // ranks
    first, each = by.group.rank * own, heads // count
    numbers = torch.tensor([head // each for head in range(first, first + own)], device=value.device)
    return value.index_select(value.dim() + HEADS, numbers)


FUNCTIONS: dict[Any, Run] = {functional.scaled_dot_product_attention: _attention}
"""Functions that are taken as a whole, before they become operators."""
