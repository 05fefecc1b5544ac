"""Rows of tensors: one for each token of the sequence that the reference runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .places import Held


def token_axis(shape: Sequence[int], length: int) -> int | None:
    """The axis that has a place for each token of one sequence, by the rule of recordings (`values.by_rows`); None
    when there is none, or it cannot be told."""
    if not shape:
        return None
    if shape[0] == length and not (length == 1 and shape[1:2] == (1,)):
        return 0
    places = [axis for axis in range(1, len(shape)) if shape[axis] == length]
    if shape[0] != 1 or not places:
        return None
    return 1 if places[0] == 1 else places[0] if len(places) == 1 else None


def rows_of(tensor: torch.Tensor, length: int) -> torch.Tensor | None:
    """[length, ...]; None when it has no such axis."""
    axis = token_axis(tuple(tensor.shape), length)
    if axis is None:
        return None
    return tensor if axis == 0 else tensor.movedim(axis, 1)[0]


def instead(tensor: torch.Tensor, rows: torch.Tensor, held: Held) -> torch.Tensor | None:
    """`tensor` with the rows that the run had; None when those have another size. A copy."""
    if math.prod(held.values.shape[1:]) != math.prod(rows.shape[1:]) or len(held.values) != len(rows):
        return None
    theirs = torch.from_numpy(np.ascontiguousarray(held.values)).reshape(rows.shape).to(rows.dtype, copy=True)
    if not held.known.all():
        known = torch.from_numpy(held.known).reshape(-1, *[1] * (rows.dim() - 1))
        theirs = torch.where(known, theirs, rows)
    axis = token_axis(tuple(tensor.shape), len(rows))
    return theirs if not axis else theirs[None].movedim(1, axis).contiguous()


def perturbed(tensor: torch.Tensor, roundoff: float, generator: torch.Generator) -> torch.Tensor:
    """Every value moved by up to a relative `roundoff`, evenly spread."""
    if not tensor.is_floating_point():
        return tensor
    wide = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
    return tensor * (1 + roundoff * (2 * wide - 1)).to(tensor.dtype)
