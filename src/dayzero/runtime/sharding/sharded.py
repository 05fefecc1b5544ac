"""A tensor of which every rank of a group holds a part.

It has the shape of the whole, so a model's own code runs as it is, with its own numbers of heads. Plain tensors are the
same on all ranks. What is a sum over parts is summed up at once, so there is nothing else than parts and wholes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from .groups import Group, Imagined
from .shapes import Segments, even, ranges

Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Sharded(torch.Tensor):
    """`part` is what this rank holds: of each segment of dimension `dim` its share, one behind the other."""

    part: torch.Tensor
    dim_: int
    segments: Segments
    group: Group
    operators: ClassVar[Run]
    """What runs any operator on parts; both are set by the package `operators`, which knows this class."""
    functions: ClassVar[Mapping[Any, Run]] = {}
    """What runs some functions before they become operators."""

    @staticmethod
    def __new__(cls, part: torch.Tensor, dim: int, segments: Segments, group: Group) -> Sharded:
        """Of a rank's own part."""
        shape, strides = list(part.shape), list(part.stride())
        shape[dim] = sum(segments)
        own = strides[dim]
        strides = [stride * group.size if place != dim and stride >= own and stride else stride
                   for place, stride in enumerate(strides)]
        # A view of an ordinary tensor, as parameters are, may not be an inference tensor.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, shape, strides=strides, dtype=part.dtype, device=part.device, requires_grad=False)
        made.part, made.dim_, made.segments, made.group = part.detach(), dim, tuple(segments), group
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:  # fmt: skip
        """Runs an operator."""
        return cls.operators(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function: a few are taken as a whole, before they become operators."""
        kwargs = kwargs or {}
        if func in cls.functions:
            return cls.functions[func](func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Sharded({tuple(self.shape)}, dim={self.dim_}, segments={self.segments}, part={tuple(self.part.shape)})"


def is_sharded(value: Any) -> bool:
    """Whether ranks hold different parts of it."""
    return isinstance(value, Sharded)


def take(value: torch.Tensor, dim: int, segments: Segments, group: Group) -> torch.Tensor:
    """This rank's part of a plain tensor. A view where there is one segment."""
    if isinstance(group, Imagined):
        group.taken.append((value, dim, segments))
    own = ranges(segments, group.size, group.rank)
    pieces = [value.narrow(dim, first, last - first) for first, last in own]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def together(value: Sharded) -> torch.Tensor:
    """The whole, put together, without autograd. Every rank of the group has to ask."""
    group, dim = value.group, value.dim_
    parts = group.gather(value.part)
    if len(value.segments) == 1:
        return torch.cat(parts, dim)
    sizes = [size // group.size for size in value.segments]
    split = [torch.split(part, sizes, dim) for part in parts]
    return torch.cat([pieces[number] for number in range(len(sizes)) for pieces in split], dim)


def local(value: Any) -> Any:
    """What this rank holds of it: a plain tensor. With autograd."""
    if not isinstance(value, Sharded):
        return value
    return applied(_Local, value) if value.requires_grad else value.part


def like(value: Any, other: Any) -> Any:
    """A rank's own part as one of a tensor that is cut as `other` is, other dimensions may differ; itself when `other`
    is plain. With autograd."""
    if not isinstance(other, Sharded) or isinstance(value, Sharded):
        return value
    return placed(value, other.dim_, other.segments, other.group)


def placed(part: torch.Tensor, dim: int, segments: Segments, group: Group) -> Any:
    """A rank's own part as one of a whole. With autograd."""
    if part.requires_grad:
        return applied(_Placed, part, dim, segments, group)
    return Sharded(part, dim, segments, group)


def cut(value: torch.Tensor, dim: int, segments: Segments, group: Group) -> Any:
    """A plain tensor as one that is in parts; None when it cannot be dealt out evenly."""
    if not even(segments, group.size):
        return None
    return Sharded(take(value, dim, segments, group), dim, segments, group)


def whole(value: Any) -> Any:
    """Put together; anything plain as it is. With autograd. Every rank of the group has to ask."""
    if not isinstance(value, Sharded):
        return value
    return applied(_Together, value) if value.requires_grad else together(value)


def mine(value: torch.Tensor, dim: int, segments: Segments, group: Group) -> torch.Tensor:
    """This rank's part of a plain tensor, with autograd."""
    return applied(_Take, value, dim, segments, group) if value.requires_grad else take(value, dim, segments, group)


def shared(value: torch.Tensor, group: Group) -> torch.Tensor:
    """A plain tensor of which each rank uses all for its own part of a result. With autograd: what it gets back is the
    sum over ranks."""
    return applied(_Shared, value, group) if value.requires_grad else value


def applied(function: type[torch.autograd.Function], *args: Any) -> Any:
    """What the function gives, with its own way back."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Sharded) -> torch.Tensor:
        ctx.cut = value.dim_, value.segments, value.group
        return value.part.view_as(value.part)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return Sharded(given[0], *ctx.cut)


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, dim: int, segments: Segments, group: Group) -> Sharded:
        ctx.cut = dim, segments, group
        return Sharded(part, dim, segments, group)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        grad = given[0]
        return (grad.part if isinstance(grad, Sharded) else take(grad, *ctx.cut)), None, None, None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Sharded) -> torch.Tensor:
        ctx.cut = value.dim_, value.segments, value.group
        return together(value)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return Sharded(take(given[0], *ctx.cut), *ctx.cut)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return ctx.group.sum(given[0]), None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int, segments: Segments, group: Group) -> torch.Tensor:
        ctx.cut = dim, segments, group
        return take(value, dim, segments, group).clone()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return together(Sharded(given[0], *ctx.cut)), None, None, None
