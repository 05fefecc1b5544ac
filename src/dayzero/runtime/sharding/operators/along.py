"""Operators that act on each element by itself, or along a dimension that is not cut."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, first_of, part, place, positive, same_cut, sharded_of

aten = torch.ops.aten


def pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments are broadcast; parts go with the same parts."""
    dim, segments, group = same_cut(sharded_of((args, kwargs)))
    inplace = func._schema.is_mutable
    if inplace and not isinstance(args[0], Sharded):
        raise WholeError

    def of(value: Any) -> Any:
        return part(value, dim, segments, group) if isinstance(value, torch.Tensor) else value

    made = func(*tree_map(of, args), **tree_map(of, kwargs))
    if inplace:
        return args[0]
    return tree_map(lambda value: place(value, dim, segments, group), made)


def _copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One tensor, with settings of which none is a size."""
    value = args[0]
    if not isinstance(value, Sharded):
        raise WholeError
    made = func(value.part, *args[1:], **kwargs)
    return place(made, value.dim_, value.segments, value.group)


def _new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A new tensor of a size that is given, with one value. It is in parts too along the same dimension, or along the
    only one that is as long, as of a state that is made for heads or channels; otherwise it is plain."""
    value, size = args[0], list(args[1])
    long = [dim for dim, each in enumerate(size) if each == value.shape[value.dim_]]
    if value.dim_ in long and len(size) == value.dim():
        long = [value.dim_]
    if len(long) != 1:
        return func(value.part, *args[1:], **kwargs)
    size[long[0]] = value.part.shape[value.dim_]
    return place(func(value.part, size, *args[2:], **kwargs), long[0], value.segments, value.group)


def _along(position: int, default: int = -1) -> Any:
    """A rule for operators that act along the dimension that is argument number `position`."""
    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0]
        if not isinstance(value, Sharded) or sharded_of((args[1:], kwargs)):
            raise WholeError
        given = args[position] if len(args) > position else kwargs.get("dim", default)
        dims = [positive(each, value) for each in (given if isinstance(given, list | tuple) else [given])]
        if value.dim_ in dims:
            raise WholeError
        made = func(value.part, *args[1:], **kwargs)
        return tree_map(lambda each: place(each, value.dim_, value.segments, value.group), made)

    return rule


def _backward_along(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradient of a softmax: (gradient, output, dimension, dtype)."""
    value = first_of(args)
    dim, segments, group = same_cut(sharded_of(args))
    if positive(args[2], value) == value.dim_:
        raise WholeError
    own = [part(each, dim, segments, group) for each in args[:2]]
    return place(func(*own, *args[2:], **kwargs), dim, segments, group)


def _triangle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The last two dimensions are a matrix."""
    value = args[0]
    if not isinstance(value, Sharded) or value.dim_ >= value.dim() - 2:
        raise WholeError
    if func._schema.is_mutable:
        func(value.part, *args[1:], **kwargs)
        return value
    return place(func(value.part, *args[1:], **kwargs), value.dim_, value.segments, value.group)


def _solved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Many systems of equations: (matrices, right sides)"""
    dim, segments, group = same_cut(sharded_of(args))
    if dim > -3 or any(each.dim() < -dim for each in args[:2]):
        raise WholeError
    own = [part(each, dim, segments, group) for each in args[:2]]
    return place(func(*own, *args[2:], **kwargs), dim, segments, group)


def _padded(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Padding: pairs of numbers from the last dimension on."""
    value, pads = args[0], args[1]
    back = value.dim() - 1 - value.dim_
    if any(pads[2 * back:2 * back + 2]):
        raise WholeError
    return place(func(value.part, *args[1:], **kwargs), value.dim_, value.segments, value.group)


def _normed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A norm over the last dimensions: (input, their sizes, weight, bias, eps)."""
    value = args[0]
    if not isinstance(value, Sharded) or sharded_of(args[1:]) or value.dim_ >= value.dim() - len(args[1]):
        raise WholeError
    return tree_map(lambda each: place(each, value.dim_, value.segments, value.group),
                    func(value.part, *args[1:], **kwargs))


def _convolved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A convolution that does not mix channels: (input, weight, bias, stride, padding, dilation, transposed, output
    padding, groups)."""
    given, weight, bias, *settings, groups = args
    if isinstance(given, Sharded):
        dim, segments, group = given.dim_, given.segments, given.group
    else:
        by = first_of((weight, bias))
        dim, segments, group = 1 + by.dim_, by.segments, by.group
    if dim != 1 or given.dim() < 3 or groups != given.shape[1] or weight.shape[0] != groups or groups % group.size:
        raise WholeError
    made = func(part(given, 1, segments, group), part(weight, 0, segments, group), part(bias, 0, segments, group),
                *settings, groups // group.size, **kwargs)
    return place(made, 1, segments, group)


RULES = {
    **dict.fromkeys((aten.copy_.default, aten.where.self, aten.masked_fill_.Scalar, aten.masked_fill_.Tensor,
                     aten.fill_.Scalar, aten.zero_.default), pointwise),
    **dict.fromkeys((
        aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default, aten.lift_fresh.default,
        aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default, aten.full_like.default,
        aten.view.dtype, aten._conj.default), _copy),
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default, aten.new_full.default),
                    _new),
    **dict.fromkeys((
        aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default, aten.cumsum.default,
        aten.cumprod.default, aten.flip.default, aten.logcumsumexp.default), _along(1)),
    aten.topk.default: _along(2),
    aten.sort.default: _along(1),
    aten._softmax_backward_data.default: _backward_along,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
    aten.tril_.default: _triangle,
    aten.triu_.default: _triangle,
    aten.linalg_solve_triangular.default: _solved,
    aten.constant_pad_nd.default: _padded,
    aten.native_layer_norm.default: _normed,
    aten.convolution.default: _convolved,
}
