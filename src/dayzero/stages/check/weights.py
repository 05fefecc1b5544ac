"""Tensors of two releases' files against each other, exactly, whatever files they lie in. Streamed, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite, sqrt
from typing import NamedTuple

import numpy as np

from dayzero.progress import SILENT, Progress
from dayzero.schema import Release

from .measure import FAR
from .stored import FLOATS, Tensor, Values, cast, parts, tensors_of, values


class Difference(NamedTuple):
    """A tensor that is not the reference's."""

    name: str
    place: str
    relative_l2: float
    """||x - r|| / ||r||; share of the bytes that differ where the dtype's values are not read; 1 when it is missing, or
    of another shape or kind of dtype."""


class Comparison(NamedTuple):
    """All tensors of both."""

    differ: list[Difference]
    compared: int
    other_form: list[str]
    """Names of the reference's tensors that are stored in another form, quantised or fused, and so not compared."""


def compare(ours: Release, theirs: Release, progress: Progress = SILENT) -> Comparison:
    """Every tensor of one name and shape: the same bytes, or of two dtypes what a cast of the reference's values gives.

    A tensor that only one release has is missing or too much, and one of another shape is wrong, unless it is stored in
    another form: its part of the model is quantised in one of the two releases, or holds, under other names, as many
    parameters. Raises ReleaseError when a file cannot be read.
    """
    mine, other = tensors_of(ours), tensors_of(theirs)
    both = [name for name in other if name in mine and _comparable(mine[name], other[name])]
    differ = []
    for done, name in enumerate(both):
        progress.update("comparing weights", done, len(both))
        apart = _difference(mine[name], other[name])
        if apart is not None:
            differ.append(Difference(name, other[name].place, apart))
    compared = set(both)
    left, right = ([each for name, each in tensors.items() if name not in compared] for tensors in (mine, other))
    odd, other_form = _leftovers(left, right, _quantised((*mine.values(), *other.values())))
    return Comparison(differ + odd, len(both), other_form)


def _quantised(tensors: Iterable[Tensor]) -> set[str]:
    """Parts of the model with a quantised weight."""
    return {each.part for each in tensors if each.is_quantised}


def _leftovers(left: list[Tensor], right: list[Tensor], quantised: set[str]) -> tuple[list[Difference], list[str]]:
    """(tensors that are missing, too much or of another shape; the reference's that are stored in another form)."""
    named = {each.name for each in left} & {each.name for each in right}
    sizes = [Counter[str](), Counter[str]()]
    for size, tensors in zip(sizes, (left, right), strict=True):
        for each in tensors:
            if each.name not in named and not each.is_idle:
                size[each.part] += round(each.parameters)
    fused = {part for part, parameters in sizes[0].items() if parameters and parameters == sizes[1][part]}
    odd, other_form = dict[str, Difference](), dict[str, None]()
    for each in (*right, *left):
        if each.part in quantised or (each.part in fused and each.name not in named):
            other_form[each.name] = None
        elif each.name in named or not each.is_idle:
            odd.setdefault(each.name, Difference(each.name, each.place, 1.0))
    return list(odd.values()), list(other_form)


def _comparable(ours: Tensor, theirs: Tensor) -> bool:
    kinds = {ours.group.dtype, theirs.group.dtype}
    return ours.group.shape == theirs.group.shape and (len(kinds) == 1 or kinds <= FLOATS.keys())


def _difference(ours: Tensor, theirs: Tensor) -> float | None:
    """None when they are the same; else how far they are apart, as `Difference.relative_l2`."""
    if _same(ours, theirs):
        return None
    difference = length = 0.0
    for x, r in _pairs(ours, theirs):
        if ours.group.dtype not in FLOATS:
            difference, length = difference + float((x != r).sum()), length + len(r)
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            wide = r.astype(np.float64)
            difference += float(((x - wide) ** 2).sum())
            length += float((wide**2).sum())
    if ours.group.dtype not in FLOATS:
        return difference / length
    return sqrt(difference / length) if isfinite(difference) and isfinite(length) and length else FAR


def _same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the bytes are, or of two dtypes our values are what a cast of the reference's gives. A number that the
    cast makes infinite is lost."""
    if ours.group.dtype == theirs.group.dtype:
        return all(x == r for x, r in zip(parts(ours), parts(theirs), strict=True))
    return all(_is_cast(x, r, ours.group.dtype) for x, r in _pairs(ours, theirs))


def _is_cast(x: Values, r: Values, dtype: str) -> bool:
    made = cast(r, dtype)
    return bool(np.array_equal(x, made, equal_nan=True) and (np.isfinite(made) | ~np.isfinite(r)).all())


def _pairs(ours: Tensor, theirs: Tensor) -> Iterator[tuple[Values, Values]]:
    """Their values part by part; their bytes where the dtype is not read."""
    for x, r in zip(parts(ours), parts(theirs), strict=True):
        yield values(x, ours.group.dtype), values(r, theirs.group.dtype)
