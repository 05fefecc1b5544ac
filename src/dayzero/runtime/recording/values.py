"""Tensors in what a module takes and gives: their slots, what their axes are, and the part that this rank holds."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from dayzero.runtime.sharding import is_sharded
from dayzero.runtime.sharding.shapes import ranges
from dayzero.schema.golden import Held

DTYPES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "F32", torch.complex128: "F64",
}  # fmt: skip
"""Names by safetensors; complex numbers are stored as pairs."""
_DEPTH = 8
_FLAT = 2


class Local(NamedTuple):
    """What a rank holds of a tensor."""

    value: torch.Tensor
    """Plain, without autograd."""
    held: tuple[Held, ...] = ()
    summed: tuple[str, ...] = ()


def slots(value: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of all tensors in nested tuples, lists, mappings and dataclasses; others are passed over, as a
    cache is."""
    if isinstance(value, torch.Tensor):
        yield path or "0", value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | nn.Module):
        parts = [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    for name, part in parts if depth else ():
        yield from slots(part, f"{path}.{name}" if path else str(name), depth - 1)


def arguments(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by the names that the code of the module's class gives them, whatever was put around it."""
    kind: Any = type(module)
    asked = _asked(kind)
    return {**{asked[index] if index < len(asked) else str(index): each for index, each in enumerate(args)}, **named}


def variant(given: dict[str, Any]) -> str:
    """The texts among a call's arguments: they say which of several things a module is asked for, and code may ask in
    any order."""
    return ",".join(each for each in given.values() if isinstance(each, str))


@cache
def _asked(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in inspect.signature(kind.forward).parameters.values()
                 if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))[1:]


def local(value: torch.Tensor) -> Local:
    """This rank's part, and which part that is; a view where that is possible."""
    if is_sharded(value):
        own: Any = value
        place = ranges(own.segments, own.group.size, own.group.rank)
        return Local(own.part.detach(), (Held(axis=own.dim_, size=sum(own.segments), ranges=tuple(place)),))
    if type(value) is not torch.Tensor and hasattr(value, "placements") and hasattr(value, "device_mesh"):
        return _of_mesh(value)
    return Local(value.detach())


def _of_mesh(value: Any) -> Local:
    """Of torch's DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    part = value.detach().to_local()
    if hasattr(part, "wait"):
        part = part.wait()
    mesh, placements = value.device_mesh, value.placements
    names = mesh.mesh_dim_names or tuple(f"mesh{axis}" for axis in range(mesh.ndim))
    summed = tuple(name for name, each in zip(names, placements, strict=True) if each.is_partial())
    shape, offset = compute_local_shape_and_global_offset(value.shape, mesh, placements)
    cut = {each.dim % value.dim() for each in placements if each.is_shard()}
    held = tuple(Held(axis=axis, size=value.shape[axis], ranges=((offset[axis], offset[axis] + shape[axis]),))
                 for axis in sorted(cut))
    return Local(part, held, summed)


def by_rows(own: Local, batch: int, length: int, *, last: bool = False) -> tuple[Local, tuple[str, ...], bool]:
    """(with rows of the pass as its first axis, names of the axes, whether these are the last ones of each sequence).

    `batch`, `length`: of the pass; 0 when there is none. Rows are made of an axis of the batch, the first one, and one
    of the tokens: another one of that length, of several the one that is farthest apart in memory. `last`: fewer
    tokens than that are the last ones.
    """
    value = own.value
    axis, axes, fewer, held = _rows(tuple(value.shape), value.stride(), value.is_floating_point(), own.held, batch,
                                    length, last)
    if axis is None:
        return own, axes, fewer
    return own._replace(value=value.movedim(axis, 1).flatten(0, 1), held=held), axes, fewer


@lru_cache(maxsize=4096)  # a model has many tensors of few shapes
def _rows(shape: tuple[int, ...], strides: tuple[int, ...], floating: bool, held: tuple[Held, ...], batch: int,
          length: int, last: bool) -> tuple[int | None, tuple[str, ...], bool, tuple[Held, ...]]:
    """(axis of the tokens that is to be joined with the first one; None: none, names of the axes then, whether they are
    the last ones of each sequence, what is held of them)."""
    whole = [next((each.size for each in held if each.axis == axis), size) for axis, size in enumerate(shape)]
    rest = _named([f"dim{axis}" for axis in range(1, len(whole))], floating)
    if not batch * length or not whole:
        return None, ("dim0", *rest) if whole else (), False, held
    single = length == 1 and 1 in (whole[1:] if len(whole) > _FLAT or batch == 1 else ())  # the tokens' axis is there
    if whole[0] == batch * length and not single and not (batch == 1 and whole[1:2] == [length]):
        return None, ("token", *rest), False, held
    cut = {each.axis for each in held}
    fewer = last and len(whole) > _FLAT and whole[1] < length
    places = [1] if fewer else [axis for axis in range(1, len(whole)) if whole[axis] == length and axis not in cut]
    if whole[0] != batch or not places or 0 in cut:
        return None, ("dim0", *rest), False, held
    axis = max(places, key=lambda axis: strides[axis])
    rest = _named([f"dim{other}" for other in range(1, len(whole)) if other != axis], floating)
    moved = tuple(Held(axis=each.axis - (each.axis > axis), size=each.size, ranges=each.ranges) for each in held)
    return axis, ("token", *rest), fewer, moved


def _named(rest: list[str], floating: bool) -> list[str]:
    """Names of all axes but the first; the last one of numbers that are computed is a channel's."""
    return [*rest[:-1], "channel"] if rest and floating else rest


def as_bytes(value: torch.Tensor) -> Any:
    """The bytes of a contiguous tensor on the host, without copying them."""
    if value.is_complex():
        value = torch.view_as_real(value)
    return value.reshape(-1).view(torch.uint8).numpy()
