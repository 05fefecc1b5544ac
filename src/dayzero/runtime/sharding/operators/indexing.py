"""Operators that choose elements by number."""

from __future__ import annotations

from typing import Any

import torch

from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, part, place, positive, same_cut, sharded_of

aten = torch.ops.aten


def _embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(table, row numbers): of the rows that a rank has, added up over ranks."""
    table, numbers = args[0], args[1]
    if not isinstance(table, Sharded) or isinstance(numbers, Sharded) or len(table.segments) > 1:
        raise WholeError
    if table.dim_ == 1:
        return place(table.part[numbers], numbers.dim(), table.segments, table.group)
    rows = table.part.shape[0]
    own = numbers - table.group.rank * rows
    here = (own >= 0) & (own < rows)
    made = table.part[own.clamp(0, rows - 1)] * here.unsqueeze(-1).to(table.dtype)
    return table.group.sum(made)


def _index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, row numbers for some of its dimensions)"""
    value, numbers = args[0], args[1]
    if not isinstance(value, Sharded) or sharded_of(numbers):
        raise WholeError
    dim = _after_index(value, numbers)
    return place(func(value.part, numbers), dim, value.segments, value.group)


def _after_index(value: Sharded, numbers: Any) -> int:
    """Where its cut dimension is among those of the result."""
    used = [place_ for place_, each in enumerate(numbers) if each is not None]
    masks = any(numbers[each].dtype in (torch.bool, torch.uint8) for each in used)
    if masks and (value.dim_ == 0 or len(used) != 1 or numbers[used[0]].dim() != 1):
        raise WholeError
    if value.dim_ in used:
        raise WholeError
    dims = max(numbers[each].dim() for each in used)
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0
    before = sum(each < value.dim_ for each in used)
    return value.dim_ - before + (dims if value.dim_ > first or not together else 0)


def _index_select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, dim, numbers = args
    if not isinstance(value, Sharded) or isinstance(numbers, Sharded) or positive(dim, value) == value.dim_:
        raise WholeError
    return place(func(value.part, dim, numbers), value.dim_, value.segments, value.group)


def _gather(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, dimension, row numbers)"""
    value, dim, numbers = args[:3]
    at, segments, group = same_cut(sharded_of((value, numbers)))
    if positive(dim, value) == positive(at, value) or numbers.shape[at] != value.shape[at]:
        raise WholeError
    made = func(part(value, at, segments, group), dim, part(numbers, at, segments, group), **kwargs)
    return place(made, at, segments, group)


def _index_add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, dimension, row numbers, what is added)"""
    value, dim, numbers, added = args[:4]
    at, segments, group = same_cut(sharded_of((value, added)))
    if positive(dim, value) == positive(at, value) or isinstance(numbers, Sharded):
        raise WholeError
    if func._schema.is_mutable:
        if not isinstance(value, Sharded):
            raise WholeError
        func(value.part, dim, numbers, part(added, at, segments, group), **kwargs)
        return value
    made = func(part(value, at, segments, group), dim, numbers, part(added, at, segments, group), **kwargs)
    return place(made, at, segments, group)


def _index_put(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, row numbers for its first dimensions, values)"""
    value, numbers, values = args[:3]
    if not isinstance(value, Sharded) or sharded_of(numbers):
        raise WholeError
    dim = _after_index(value, numbers)
    result = value.dim() - sum(each is not None for each in numbers) + max(
        each.dim() for each in numbers if each is not None)
    own = part(values, dim - result, value.segments, value.group)
    made = func(value.part, numbers, own, *args[3:], **kwargs)
    return value if func._schema.is_mutable else place(made, value.dim_, value.segments, value.group)


def _index_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, dimension, row numbers, source)"""
    return _index_add(func, args, kwargs)


RULES = {
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.index_add.default: _index_add,
    aten.index_add_.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_copy_.default: _index_copy,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
}
