"""Rows of matrices as both runs had loaded them: the same, rounded to fewer levels, or others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.floats import ROUNDOFF
from dayzero.runtime.golden import Dump
from dayzero.schema import Check
from dayzero.schema.comparison import MatrixDistance
from dayzero.stages.check.measure import judged
from dayzero.stages.check.patterns import rounding

from .metrics import coarser
from .places import layer_of

_SAME = 0.999
"""Share of values that a cast explains."""
_NEAR = 0.5
"""Relative L2 up to which another matrix of the reference is named."""
_TOLD = 3
Array = NDArray[Any]
Strips = Mapping[str, tuple[Array, str]]
"""Name -> ([rows, columns] with NaN where nothing was recorded, dtype)."""


def matrices(a: Dump, b: Dump) -> list[MatrixDistance]:
    """Of all matrices of one name and shape of which both recorded rows."""
    theirs, ours = strips(a), strips(b)
    return [_distance(name, theirs, ours[name]) for name in theirs
            if name in ours and theirs[name][0].shape == ours[name][0].shape]


def strips(dump: Dump) -> Strips:
    """What all ranks recorded, put together."""
    parts: dict[str, list[tuple[Array, Array, Array]]] = {}
    shapes: dict[str, tuple[int, int, str]] = {}
    for item in dump.items:
        entry = item.entry
        if entry.what != "parameter" or item.place is None:
            continue
        rows, columns = (_held(entry, axis) for axis in (0, 1))
        width = next((each.size for each in entry.held if each.axis == 1), entry.shape[1])
        shapes[entry.name] = next(each.size for each in entry.held if each.axis == 0), width, entry.dtype
        parts.setdefault(entry.name, []).append((rows, columns, dump.read(item).astype(np.float32)))
    return {name: (_together(each, shapes[name][1]), shapes[name][2]) for name, each in parts.items()}


def _held(entry: Any, axis: int) -> Array:
    held = next((each for each in entry.held if each.axis == axis), None)
    return np.arange(entry.shape[axis]) if held is None else np.concatenate(
        [np.arange(first, end) for first, end in held.ranges])


def _together(parts: Sequence[tuple[Array, Array, Array]], width: int) -> Array:
    rows = np.unique(np.concatenate([each[0] for each in parts]))
    made = np.full((len(rows), width), np.nan, np.float32)
    for own, columns, values in parts:
        made[np.ix_(np.searchsorted(rows, own), columns)] = values
    return made


def _distance(name: str, theirs: Strips, ours: tuple[Array, str]) -> MatrixDistance:
    (r, dtype), (x, other) = theirs[name], ours
    apart = _apart(x, r)
    rounded = found = ""
    if not (same := _is_cast(x, r, coarser(dtype, other))):
        how = rounding(r, x)
        rounded = how.told if how is not None else ""
        found = "" if rounded else _nearest(name, theirs, x)
    return MatrixDistance(name=name, layer=layer_of(name), rows=len(r), relative_l2=apart, same=same, rounded=rounded,
                          found=found)


def _is_cast(x: Array, r: Array, dtype: str) -> bool:
    unit = ROUNDOFF.get(dtype, ROUNDOFF["F32"])
    near = (np.abs(x - r) <= unit * np.abs(r)) | (x == r) | (np.isnan(x) & np.isnan(r))
    return bool(near.mean() >= _SAME)


def _apart(x: Array, r: Array) -> float:
    both = np.isfinite(x) & np.isfinite(r)
    length = float(np.square(r[both], dtype=np.float64).sum())
    energy = float(np.square((x - r)[both], dtype=np.float64).sum())
    return float(np.sqrt(energy / length)) if length else float(energy > 0)


def _nearest(name: str, theirs: Strips, x: Array) -> str:
    """The reference's matrix that these rows are of, or of which they are a rounding."""
    near = {other: _apart(x, r) for other, (r, _) in theirs.items() if other != name and r.shape == x.shape}
    best = min(near, key=near.__getitem__, default="")
    return best if best and near[best] < _NEAR else ""


def weight_checks(found: Sequence[MatrixDistance]) -> list[Check]:
    """That all are the reference's; none where none was recorded."""
    if not found:
        return []
    other = [each for each in found if not each.same]
    detail = f"{len(other)} of {len(found)}" + (f", such as {other[0].name}" if other else "")
    return [judged("matrices that are not the reference's as they were loaded", float(len(other)), 0.0,
                   "rows of every matrix; another precision's cast is the same", detail)]


def weight_words(found: Sequence[MatrixDistance]) -> str:
    """What is to be said of matrices that are not the reference's; empty when all are."""
    return "; ".join([*_rounded(found), *_others(found)])


def _rounded(found: Sequence[MatrixDistance]) -> Iterator[str]:
    ways: dict[str, list[float]] = {}
    for each in found:
        if each.rounded:
            ways.setdefault(each.rounded, []).append(each.relative_l2)
    for how, errors in sorted(ways.items(), key=lambda each: -len(each[1])):
        yield (f"noise of quantised weights: {len(errors)} of {len(found)} matrices are the reference's rounded to "
               f"{how} (relative error {min(errors):.2g} to {max(errors):.2g})")


def _others(found: Sequence[MatrixDistance]) -> Iterator[str]:
    odd = [each for each in found if not each.same and not each.rounded]
    if not odd:
        return
    before = "more than that noise: " if any(each.rounded for each in found) else ""
    named = [f"{each.name} is that of {each.found}" if each.found else
             f"{each.name} is another (relative error {each.relative_l2:.2g})" for each in odd]
    yield before + ", ".join(named[:_TOLD]) + (f" and {len(odd) - _TOLD} more" if len(odd) > _TOLD else "")
