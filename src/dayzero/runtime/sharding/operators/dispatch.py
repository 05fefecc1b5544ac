"""From an operator to its rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from dayzero.runtime.sharding.groups import Imagined
from dayzero.runtime.sharding.sharded import Sharded, take, together

from . import along, indexing, kernels, products, reductions, views
from .common import WholeError, first_of

_RULES: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    **views.RULES, **reductions.RULES, **products.RULES, **along.RULES, **indexing.RULES}


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator gives, of arguments of which at least one is in parts."""
    rule = _RULES.get(func) or kernels.RULES.get(func.name())
    if rule is None:
        if _is_composite(func):
            return func.decompose(*args, **kwargs)
        rule = along.pointwise if torch.Tag.pointwise in func.tags else None
    if rule is not None:
        try:
            return rule(func, args, kwargs)
        except WholeError:
            pass
    return _whole(func, args, kwargs)


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put together, computed on every rank; what the operator writes into is cut again."""
    group = first_of((args, kwargs)).group
    group.whole[str(func)] += 1
    if isinstance(group, Imagined):
        _remember_borders(func, args)
    made: dict[int, torch.Tensor] = {}

    def put(value: Any) -> Any:
        if isinstance(value, Sharded):
            if id(value) not in made:
                made[id(value)] = together(value)
            return made[id(value)]
        return value

    result = func(*tree_map(put, args), **tree_map(put, kwargs))
    written = [given for number, given in enumerate(args) if _writes(func, number) and isinstance(given, Sharded)]
    for given in written:
        given.part.copy_(take(made[id(given)], given.dim_, given.segments, given.group))
    return written[0] if written and isinstance(result, torch.Tensor) else result


def _writes(func: Any, number: int) -> bool:
    alias = func._schema.arguments[number].alias_info
    return alias is not None and alias.is_write


def _remember_borders(func: Any, args: tuple[Any, ...]) -> None:
    """Where the code cut a dimension of something whose parts lie across that border."""
    value = args[0]
    if not isinstance(value, Sharded) or not isinstance(value.group, Imagined):
        return
    for dim, places in views.cuts_of(func, args):
        if dim == value.dim_:
            value.group.borders.setdefault(value.shape[dim], set()).update(places)


def flat(values: Any) -> list[Any]:
    """Leaves of nested arguments."""
    return list(tree_flatten(values)[0])
