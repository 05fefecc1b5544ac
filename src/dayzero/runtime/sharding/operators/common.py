"""What rules have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from dayzero.runtime.sharding.groups import Group
from dayzero.runtime.sharding.shapes import Segments, even
from dayzero.runtime.sharding.sharded import Sharded, take


class WholeError(Exception):
    """A rule does not apply: the operator has to run on the whole."""


def sharded_of(values: Any) -> list[Sharded]:
    """All that is in parts among nested arguments."""
    return [each for each in tree_flatten(values)[0] if isinstance(each, Sharded)]


def first_of(values: Any) -> Sharded:
    """The first one."""
    return sharded_of(values)[0]


def same_cut(values: list[Sharded]) -> tuple[int, Segments, Group]:
    """(dimension counted from the end, segments, group) that all have. Raises WholeError when they differ."""
    found = {(each.dim_ - each.dim(), each.segments, id(each.group)) for each in values}
    if len(found) > 1:
        raise WholeError
    return values[0].dim_ - values[0].dim(), values[0].segments, values[0].group


def part(value: Any, dim: int, segments: Segments, group: Group) -> Any:
    """The part of anything along `dim` (counted from the end if negative): a plain tensor is cut, or is whole where its
    dimension is 1 or does not exist. Raises WholeError when it is cut otherwise."""
    if not isinstance(value, torch.Tensor):
        return value
    at = dim if dim >= 0 else value.dim() + dim
    if isinstance(value, Sharded):
        if value.dim_ != at or value.segments != segments or value.group is not group:
            raise WholeError
        return value.part
    if at < 0 or value.dim() <= at or value.shape[at] == 1:
        return value
    if value.shape[at] != sum(segments) or not even(segments, group.size):
        raise WholeError
    return take(value, at, segments, group)


def place(value: Any, dim: int, segments: Segments, group: Group) -> Any:
    """A rank's own result as one in parts."""
    if not isinstance(value, torch.Tensor):
        return value
    return Sharded(value, dim if dim >= 0 else value.dim() + dim, segments, group)


def positive(dim: int, value: torch.Tensor) -> int:
    """The dimension, counted from the beginning."""
    return dim if dim >= 0 else dim + value.dim()
