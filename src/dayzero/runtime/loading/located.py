"""Tensors that hold no data but know where each of their values lies. Operations that only move values about are done
on these places, so that whoever converts a checkpoint need not be understood: its own code is run on such tensors.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import pieces as boxes
from .pieces import NotEvenError, Piece

_aten = torch.ops.aten
_MOST = 50_000
"""Pieces of one tensor; what comes in more is read whole."""


class NotMovedError(Exception):
    """An operation that does more than moving values about, or moves them in too many pieces."""


class Located(torch.Tensor):
    """See above. `pieces` cover it."""

    pieces: tuple[Piece, ...]

    @staticmethod
    def __new__(cls, pieces: Sequence[Piece], shape: Sequence[int], dtype: torch.dtype) -> Located:
        made: Located = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=torch.device("cpu"))
        made.pieces = tuple(pieces)
        if len(made.pieces) > _MOST:
            raise NotMovedError(f"a tensor in {len(made.pieces)} pieces")
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Located({list(self.shape)}, {len(self.pieces)} pieces)"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        move = _MOVES.get(operator.overloadpacket)
        if move is None:
            raise NotMovedError(f"{operator} does more than moving values about")
        try:
            return move(*args, **(kwargs or {}))
        except NotEvenError:
            raise NotMovedError(f"{operator} breaks a tensor unevenly") from None


def located(source: Any, dtype: torch.dtype) -> Located:
    """All of a source, which has a `shape`."""
    return Located(boxes.whole(source), source.shape, dtype)


def _like(tensor: Located, pieces: Sequence[Piece], shape: Sequence[int]) -> Located:
    return Located(pieces, shape, tensor.dtype)


def _axis(tensor: torch.Tensor, axis: int, more: int = 0) -> int:
    return axis % max(1, tensor.dim() + more)


def _same(tensor: Located, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Located:
    if dtype not in (None, tensor.dtype):
        raise NotMovedError("values are converted")
    return _like(tensor, tensor.pieces, tensor.shape)


def _cat(tensors: Sequence[Located], dim: int = 0) -> Located:
    parts: list[Piece] = []
    at, axis = 0, _axis(tensors[0], dim)
    for tensor in tensors:
        if not isinstance(tensor, Located) or tensor.dtype != tensors[0].dtype:
            raise NotMovedError("values are converted")
        parts += boxes.moved(tensor.pieces, axis, at)
        at += tensor.shape[axis]
    shape = list(tensors[0].shape)
    shape[axis] = at
    return _like(tensors[0], parts, shape)


def _unsqueeze(tensor: Located, dim: int) -> Located:
    axis = _axis(tensor, dim, 1)
    return _like(tensor, boxes.with_axis(tensor.pieces, axis), (*tensor.shape[:axis], 1, *tensor.shape[axis:]))


def _stack(tensors: Sequence[Located], dim: int = 0) -> Located:
    axis = _axis(tensors[0], dim, 1)
    return _cat([_unsqueeze(tensor, axis) for tensor in tensors], axis)


def _slice(tensor: Located, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Located:
    axis = _axis(tensor, dim)
    first, last, step = slice(start, end, step).indices(tensor.shape[axis])
    shape = list(tensor.shape)
    shape[axis] = len(range(first, last, step))
    return _like(tensor, boxes.sliced(tensor.pieces, axis, first, last, step), shape)


def _squeeze(tensor: Located, dim: int | Sequence[int] | None = None) -> Located:
    dims = range(tensor.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    tensor = _same(tensor)  # a view is not the tensor itself
    for axis in sorted({_axis(tensor, each) for each in dims}, reverse=True):
        if tensor.shape[axis] == 1:
            tensor = _like(tensor, boxes.without_axis(tensor.pieces, axis),
                           (*tensor.shape[:axis], *tensor.shape[axis + 1:]))
    return tensor


def _select(tensor: Located, dim: int, index: int) -> Located:
    index %= tensor.shape[dim]
    return _squeeze(_slice(tensor, dim, index, index + 1), dim)


def _split(tensor: Located, size: int | Sequence[int], dim: int = 0) -> list[Located]:
    extent = tensor.shape[dim]
    sizes = [min(size, extent - at) for at in range(0, extent, size)] if isinstance(size, int) else size
    ends = [sum(sizes[:count + 1]) for count in range(len(sizes))]
    return [_slice(tensor, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _permute(tensor: Located, dims: Sequence[int]) -> Located:
    order = [_axis(tensor, dim) for dim in dims]
    return _like(tensor, boxes.permuted(tensor.pieces, order), [tensor.shape[axis] for axis in order])


def _transpose(tensor: Located, first: int = 0, second: int = 1) -> Located:
    order = list(range(tensor.dim()))
    first, second = _axis(tensor, first), _axis(tensor, second)
    order[first], order[second] = second, first
    return _permute(tensor, order)


def _view(tensor: Located, shape: Sequence[int]) -> Located:
    known = torch.empty(tensor.shape, device="meta").view(shape).shape
    return _like(tensor, boxes.reshaped(tensor.pieces, tuple(tensor.shape), tuple(known)), known)


_MOVES: dict[Any, Callable[..., Any]] = {
    _aten.cat: _cat, _aten.stack: _stack, _aten.slice: _slice, _aten.select: _select, _aten.split: _split,
    _aten.split_with_sizes: _split, _aten.unbind: lambda tensor, dim=0: [
        _select(tensor, dim, index) for index in range(tensor.shape[dim])],
    _aten.transpose: _transpose, _aten.permute: _permute, _aten.t: lambda tensor: _transpose(tensor, 0, -1),
    _aten.unsqueeze: _unsqueeze, _aten.squeeze: _squeeze, _aten.view: _view, _aten._unsafe_view: _view,
    _aten.clone: _same, _aten.detach: _same, _aten.alias: _same, _aten._to_copy: _same,
}  # fmt: skip
