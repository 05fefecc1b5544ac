"""Operators that look at the same elements in another shape, or join tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dayzero.runtime.sharding.shapes import Segments, between, regrouped, resolved
from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, part, place, positive, same_cut, sharded_of

aten = torch.ops.aten


def _view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    shape = resolved(args[1], value.numel())
    found = regrouped(value.shape, shape, value.dim_, value.segments, value.group.size)
    if found is None:
        raise WholeError
    dim, segments = found
    own = list(shape)
    own[dim] = sum(segments) // value.group.size
    return place(value.part.reshape(own), dim, segments, value.group)


def _permute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    order = [positive(each, value) for each in args[1]]
    return place(value.part.permute(order), order.index(value.dim_), value.segments, value.group)


def _transpose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    first, second = (positive(each, value) for each in args[1:3])
    dim = {first: second, second: first}.get(value.dim_, value.dim_)
    return place(value.part.transpose(first, second), dim, value.segments, value.group)


def _t(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    return place(value.part.t(), 1 - value.dim_ if value.dim() == 2 else value.dim_, value.segments, value.group)


def _unsqueeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    at = args[1] if args[1] >= 0 else args[1] + value.dim() + 1
    return place(value.part.unsqueeze(at), value.dim_ + (at <= value.dim_), value.segments, value.group)


def _squeeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if len(args) > 1:
        given = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        dims = [positive(each, value) for each in given]
    else:
        dims = list(range(value.dim()))
    dims = [each for each in dims if value.shape[each] == 1]
    return place(value.part.squeeze(tuple(dims)), value.dim_ - sum(each < value.dim_ for each in dims), value.segments,
                 value.group)


def _expand(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, sizes = args[0], list(args[1])
    more = len(sizes) - value.dim()
    sizes[more + value.dim_] = value.part.shape[value.dim_]
    return place(value.part.expand(sizes), more + value.dim_, value.segments, value.group)


def _slice(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    dim = positive(args[1] if len(args) > 1 else 0, value)
    if dim != value.dim_:
        return place(func(value.part, *args[1:], **kwargs), value.dim_, value.segments, value.group)
    first, last, step = _bounds(value.shape[dim], args)
    if (first, last, step) == (0, value.shape[dim], 1):
        return place(value.part.view_as(value.part), dim, value.segments, value.group)
    if step > 1:
        return _every(value, dim, first, last, step)
    return _some(value, dim, first, last)


def _bounds(size: int, args: tuple[Any, ...]) -> tuple[int, int, int]:
    first, last, step = (args[number] if len(args) > number else None for number in (2, 3, 4))
    return *slice(first, last).indices(size)[:2], step or 1


def _some(value: Sharded, dim: int, first: int, last: int) -> Any:
    """Whole segments of it."""
    found = between(value.segments, first, last)
    if found is None or last <= first:
        raise WholeError
    own = [size // value.group.size for size in value.segments]
    start, length = sum(own[:found[0]]), sum(own[found[0]:found[1]])
    return place(value.part.narrow(dim, start, length), dim, value.segments[found[0]:found[1]], value.group)


def _every(value: Sharded, dim: int, first: int, last: int, step: int) -> Any:
    """Every second element, as where gate and up projections are interleaved."""
    if first >= step or last != value.shape[dim] or any(size % (step * value.group.size) for size in value.segments):
        raise WholeError
    index = [slice(None)] * value.dim()
    index[dim] = slice(first, None, step)
    return place(value.part[tuple(index)], dim, tuple(size // step for size in value.segments), value.group)


def _select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    dim = positive(args[1], value)
    if dim == value.dim_:
        raise WholeError
    return place(value.part.select(dim, args[2]), value.dim_ - (dim < value.dim_), value.segments, value.group)


def _split(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    dim = positive(args[2] if len(args) > 2 else kwargs.get("dim", 0), value)
    if dim != value.dim_:
        return [place(each, value.dim_, value.segments, value.group) for each in func(value.part, *args[1:], **kwargs)]
    size = value.shape[dim]
    sizes = args[1] if isinstance(args[1], list | tuple) else [
        min(args[1], size - first) for first in range(0, size, args[1])]
    made, first = [], 0
    for each in sizes:
        made.append(_some(value, dim, first, first + each))
        first += each
    return made


def _unbind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    dim = positive(args[1] if len(args) > 1 else 0, value)
    if dim == value.dim_:
        raise WholeError
    return [place(each, value.dim_ - (dim < value.dim_), value.segments, value.group)
            for each in value.part.unbind(dim)]


def _cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Caches begin as an empty tensor without dimensions of their own, which joins with anything."""
    tensors = [each for each in args[0] if each.dim() != 1 or each.numel()]
    dim = positive(args[1] if len(args) > 1 else kwargs.get("dim", 0), tensors[0])
    cut = sharded_of(tensors)
    if not cut:
        raise WholeError
    if all(each.dim_ == dim and each.group is cut[0].group for each in cut):
        segments_of: list[Segments] = [each.segments if isinstance(each, Sharded) else (each.shape[dim],)
                                       for each in tensors]
        parts = [part(each, dim, own, cut[0].group) for each, own in zip(tensors, segments_of, strict=True)]
        return place(torch.cat(parts, dim), dim, tuple(size for own in segments_of for size in own), cut[0].group)
    at, segments, group = same_cut(cut)
    if positive(at, tensors[0]) == dim:
        raise WholeError
    return place(torch.cat([_exact(each, at, segments, group) for each in tensors], dim), at, segments, group)


def _exact(value: torch.Tensor, at: int, segments: Segments, group: Any) -> Any:
    """Its part; a dimension of 1 is not stretched here."""
    if value.shape[at] != sum(segments):
        raise WholeError
    return part(value, at, segments, group)


def _stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0]
    at, segments, group = same_cut(sharded_of(tensors))
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    dim = dim if dim >= 0 else dim + tensors[0].dim() + 1
    made = torch.stack([_exact(each, at, segments, group) for each in tensors], dim)
    old = positive(at, tensors[0])
    return place(made, old + (dim <= old), segments, group)


def _repeat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies one behind the other."""
    value, times = args[0], args[1]
    more = len(times) - value.dim()
    segments = value.segments * times[more + value.dim_]
    return place(value.part.repeat(times), more + value.dim_, segments, value.group)


def cuts_of(func: Any, args: tuple[Any, ...]) -> Iterator[tuple[int, list[int]]]:
    """(dimension, places inside it) where an operator cuts its first argument."""
    value = args[0]
    if func is aten.slice.Tensor:
        dim = positive(args[1] if len(args) > 1 else 0, value)
        first, last, step = _bounds(value.shape[dim], args)
        if step == 1:
            yield dim, [each for each in (first, last) if 0 < each < value.shape[dim]]
    elif func in (aten.split.Tensor, aten.split_with_sizes.default):
        dim = positive(args[2] if len(args) > 2 else 0, value)
        size = value.shape[dim]
        sizes = args[1] if isinstance(args[1], list | tuple) else [args[1]] * (size // args[1])
        yield dim, [place_ for place_ in (sum(sizes[:number]) for number in range(1, len(sizes) + 1)) if place_ < size]


RULES = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: _view,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.repeat.default: _repeat,
}
