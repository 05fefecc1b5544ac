"""Operators that stand in for kernels of libraries (dayzero.ops): each head, or channel, by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dayzero.runtime.sharding.groups import Group
from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, part, place, positive, same_cut, sharded_of

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _by_heads(dims: dict[str, int], *made: int) -> Rule:
    """A rule: the dimension of heads of each argument by name, and of each result. Heads of queries and of keys may
    differ in number, so every argument is cut into equal parts of its own number of them; a single one is for all."""
    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            raise WholeError
        group = sharded_of(args)[0].group
        names = [each.name for each in func._schema.arguments]
        own = [_equal(value, dims.get(name), group, names.index(name), func)
               for name, value in zip(names, args, strict=False)]
        results = func(*own)
        several = isinstance(results, tuple | list)
        out = tuple(place(each, dim, (each.shape[dim] * group.size,), group)
                    for each, dim in zip(results if several else (results,), made, strict=True))
        return out if several else out[0]

    return rule


def _equal(value: Any, dim: int | None, group: Group, number: int, func: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if dim is None:
        if isinstance(value, Sharded):
            raise WholeError
        return value
    dim = min(dim, value.dim() - 1)
    alias = func._schema.arguments[number].alias_info
    if alias is not None and alias.is_write and not isinstance(value, Sharded):
        raise WholeError
    return part(value, dim, (value.shape[dim],), group)


def _by_channels(dims: dict[str, int], *made: int) -> Rule:
    """A rule: the dimension of channels of each argument by name, and of each result; all have the same number."""
    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = [each.name for each in func._schema.arguments]
        cut = next((name, value) for name, value in zip(names, args, strict=False) if isinstance(value, Sharded))
        segments, group = cut[1].segments, cut[1].group
        own = []
        for name, value, about in zip(names, args, func._schema.arguments, strict=False):
            if about.alias_info is not None and about.alias_info.is_write and not isinstance(value, Sharded):
                raise WholeError
            own.append(part(value, dims[name], segments, group) if name in dims else value)
        results = func(*own, **kwargs)
        if isinstance(results, torch.Tensor):
            return place(results, made[0], segments, group)
        return tuple(place(each, dim, segments, group) for each, dim in zip(results, made, strict=True))

    return rule


def _norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x, weight, bias, gate, residual, eps, rms, activation, gate_first, groups, ...): over the last dimension, or
    parts of it"""
    x, weight, bias, gate, residual, *settings = args
    dim, segments, group = same_cut(sharded_of((x, gate, residual)))
    groups = settings[4]
    if dim == -1:
        if groups % group.size or len(segments) > 1:
            raise WholeError
        settings[4] = groups // group.size
        weight, bias = (part(each, 0, segments, group) for each in (weight, bias))
    elif sharded_of((weight, bias)):
        raise WholeError
    own = [part(each, dim, segments, group) for each in (x, gate, residual)]
    made = func(own[0], weight, bias, own[1], own[2], *settings, **kwargs)
    return tuple(place(each, dim, segments, group) for each in made)


def _rotary(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x [..., heads, width], ...)"""
    x = args[0]
    if not isinstance(x, Sharded) or x.dim_ != positive(-2, x) or sharded_of((args[1:], kwargs)):
        raise WholeError
    return place(func(x.part, *args[1:], **kwargs), x.dim_, x.segments, x.group)


_ATTENTION = {"query": 2, "key": 2, "value": 2, "alibi": 0}
RULES: dict[str, Rule] = {
    "dayzero::delta_rule": _by_heads({
        "query": 2, "key": 2, "value": 2, "decay": 2, "beta": 2, "state": 1, "a_log": 0, "decay_bias": 0}, 2, 1),
    "dayzero::linear_attention": _by_heads({"query": 2, "key": 2, "value": 2, "decay": 2, "state": 1}, 2, 1),
    "dayzero::attention": _by_heads(_ATTENTION, 2, 1),
    "dayzero::attention_cached": _by_heads({**_ATTENTION, "key_cache": 2, "value_cache": 2}, 2, 1),
    "dayzero::attention_varlen": _by_heads({"query": 1, "key": 1, "value": 1, "alibi": 0}, 1, 0),
    "dayzero::latent_attention": _by_heads({"query": 2}, 2, 1),
    "dayzero::state_space": _by_heads({
        "x": 2, "dt": 2, "a": 0, "b": 2, "c": 2, "d": 0, "gate": 2, "dt_bias": 0, "state": 1}, 2, 1),
    "dayzero::state_space_update": _by_heads({
        "state": 1, "x": 1, "dt": 1, "a": 0, "b": 1, "c": 1, "d": 0, "gate": 1, "dt_bias": 0}, 1),
    "dayzero::convolution": _by_channels({"x": 2, "weight": 0, "bias": 0, "state": 1, "residual": 2}, 2, 1),
    "dayzero::convolution_update": _by_channels({"x": 2, "state": 1, "weight": 0, "bias": 0}, 2),
    "dayzero::norm": _norm,
    "dayzero::rotary": _rotary,
}
"""By the operator's name."""
