"""Operators that make one number of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, place, positive

aten = torch.ops.aten
Total = Callable[[Any, Sharded, tuple[Any, ...], dict[str, Any]], Any]


def _reduced(total: Total | None, keep: int = 2) -> Any:
    """A rule for (input, dimensions, keep them or not). `total` makes the result where the dimension that is cut is
    reduced."""
    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0]
        if not isinstance(value, Sharded):
            raise WholeError
        given = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = _dims(given, value)
        if value.dim_ in dims:
            if total is None:
                raise WholeError
            return total(func, value, args, kwargs)
        kept = args[keep] if len(args) > keep else kwargs.get("keepdim", False)
        dim = value.dim_ if kept else value.dim_ - sum(each < value.dim_ for each in dims)
        made = func(value.part, *args[1:], **kwargs)
        return tree_map(lambda each: place(each, dim, value.segments, value.group), made)

    return rule


def _dims(given: Any, value: torch.Tensor) -> list[int]:
    if given is None or given == []:
        return list(range(value.dim()))
    return [positive(each, value) for each in (given if isinstance(given, list | tuple) else [given])]


def _sum(func: Any, value: Sharded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return value.group.sum(func(value.part, *args[1:], **kwargs))


def _mean(func: Any, value: Sharded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Parts have the same size."""
    return value.group.sum(func(value.part, *args[1:], **kwargs)) / value.group.size


def _most(op: str) -> Total:
    def total(func: Any, value: Sharded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return value.group.sum(func(value.part, *args[1:], **kwargs), op)

    return total


def _norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, order, dimensions, keep them or not)"""
    value = args[0]
    order = args[1] if len(args) > 1 else 2
    given = args[2] if len(args) > 2 else kwargs.get("dim")
    dims = _dims(given, value)
    if value.dim_ in dims:
        if order != 2:
            raise WholeError
        return value.group.sum(func(value.part, *args[1:], **kwargs) ** 2).sqrt()
    kept = args[3] if len(args) > 3 else kwargs.get("keepdim", False)
    dim = value.dim_ if kept else value.dim_ - sum(each < value.dim_ for each in dims)
    return place(func(value.part, *args[1:], **kwargs), dim, value.segments, value.group)


RULES = {
    aten.sum.dim_IntList: _reduced(_sum),
    aten.sum.default: _reduced(_sum),
    aten.mean.dim: _reduced(_mean),
    aten.mean.default: _reduced(_mean),
    aten.amax.default: _reduced(_most("max")),
    aten.amin.default: _reduced(_most("min")),
    aten.max.default: _reduced(_most("max")),
    aten.min.default: _reduced(_most("min")),
    aten.max.dim: _reduced(None),
    aten.min.dim: _reduced(None),
    aten.any.default: _reduced(_most("max")),
    aten.any.dim: _reduced(_most("max")),
    aten.all.default: _reduced(_most("min")),
    aten.all.dim: _reduced(_most("min")),
    aten.argmax.default: _reduced(None),
    aten.argmin.default: _reduced(None),
    aten.logsumexp.default: _reduced(None),
    aten.prod.dim_int: _reduced(None),
    aten.var.correction: _reduced(None, 9),
    aten.linalg_vector_norm.default: _norm,
}
