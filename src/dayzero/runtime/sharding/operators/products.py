"""Matrix products. A rank multiplies its rows or columns; where the dimension that is summed over is cut, ranks add
up."""

from __future__ import annotations

from typing import Any

import torch

from dayzero.runtime.sharding.sharded import Sharded

from .common import WholeError, part, place, sharded_of

aten = torch.ops.aten
BATCH, ROW, COLUMN, INNER = "batch", "row", "column", "inner"


def _roles(left: torch.Tensor, right: torch.Tensor) -> tuple[str, Sharded, str, Sharded | None]:
    """(what the cut is for the product, by whom; the same of the other one if that is cut too)."""
    found: list[tuple[str, Sharded]] = []
    for value, names in ((left, (BATCH, ROW, INNER)), (right, (BATCH, INNER, COLUMN))):
        if isinstance(value, Sharded):
            found.append((names[3 - value.dim() + value.dim_], value))
    if len(found) == 2 and (found[0][0] != found[1][0] or found[0][1].segments != found[1][1].segments):
        raise WholeError
    return found[0][0], found[0][1], found[-1][0], found[-1][1]


def _parts(left: torch.Tensor, right: torch.Tensor) -> tuple[str, Sharded, Any, Any]:
    """(what the cut is for the product, by whom, this rank's part of both)."""
    role, by, *_ = _roles(left, right)
    at_left = {BATCH: -3, ROW: -2, INNER: -1}.get(role)
    at_right = {BATCH: -3, INNER: -2, COLUMN: -1}.get(role)

    def of(value: torch.Tensor, at: int | None) -> Any:
        if at is None:
            if isinstance(value, Sharded):
                raise WholeError
            return value
        return part(value, at, by.segments, by.group)

    return role, by, of(left, at_left), of(right, at_right)


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """mm, bmm: (left, right)"""
    role, by, left, right = _parts(args[0], args[1])
    return _finished(role, by, func(left, right, *args[2:], **kwargs))


def _finished(role: str, by: Sharded, made: torch.Tensor) -> Any:
    if role == INNER:
        return by.group.sum(made)
    return place(made, {BATCH: -3, ROW: -2, COLUMN: -1}[role], by.segments, by.group)


def _product_and_sum(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """addmm, baddbmm: (what is added, left, right)"""
    added, left, right = args[:3]
    plain = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}[func]
    if not sharded_of((left, right)):
        raise WholeError
    role, by, left, right = _parts(left, right)
    if role == INNER:
        if isinstance(added, Sharded):
            raise WholeError
        product = by.group.sum(plain(left, right))
        return product * kwargs.get("alpha", 1) + added * kwargs.get("beta", 1)
    at = {BATCH: -3, ROW: -2, COLUMN: -1}[role]
    return place(func(part(added, at, by.segments, by.group), left, right, **kwargs), at, by.segments, by.group)


def _vector(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """mv: (matrix, vector)"""
    matrix, vector = args
    if isinstance(matrix, Sharded) and matrix.dim_ == 0 and not isinstance(vector, Sharded):
        return place(func(matrix.part, vector), 0, matrix.segments, matrix.group)
    by = matrix if isinstance(matrix, Sharded) else vector
    if isinstance(matrix, Sharded) and matrix.dim_ == 0:
        raise WholeError
    return by.group.sum(func(part(matrix, 1, by.segments, by.group), part(vector, 0, by.segments, by.group)))


def _dot(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    by = args[0] if isinstance(args[0], Sharded) else args[1]
    return by.group.sum(func(*(part(each, 0, by.segments, by.group) for each in args)))


def _grouped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_grouped_mm: rows of [rows, inner] by one of the matrices [number, inner, columns] each."""
    left, right, *rest = args
    if left.dim() != 2 or right.dim() != 3 or sharded_of((rest, kwargs)):
        raise WholeError
    if any(isinstance(each, Sharded) and each.dim_ == 0 for each in (left, right)):
        raise WholeError
    role, by, left, right = _parts(left, right)
    made = func(left.contiguous(), right, *rest, **kwargs)
    return by.group.sum(made) if role == INNER else place(made, 1, by.segments, by.group)


RULES = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _product_and_sum,
    aten.baddbmm.default: _product_and_sum,
    aten.mv.default: _vector,
    aten.dot.default: _dot,
    aten._grouped_mm.default: _grouped,
}
