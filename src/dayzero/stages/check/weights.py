"""Tensors of two releases' files against each other, exactly, whatever files they lie in. Streamed, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, prod, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import ReleaseError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Release, TensorGroup

from .measure import FAR

_ELEMENTS = 1 << 22
"""Elements that are read at a time."""
_ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
"""Dtypes whose values are read, and their largest relative error of rounding to nearest."""
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PLAIN = ("bf16", "f16", "f32", "f64")
"""Schemes that are no quantisation."""
_SMALLEST = {"F16": 2.0**-25}
"""Largest absolute error of rounding where the exponent ends."""
Values = NDArray[np.float64]


class Tensor(NamedTuple):
    """One tensor of a release."""

    release: Release
    group: TensorGroup
    row: int
    role: str
    parameters: float
    """Logical ones."""

    @property
    def name(self) -> str:
        """As in the files."""
        return self.group.name(self.row)

    @property
    def path(self) -> Path:
        """Its file."""
        return Path(str(self.release.root)) / self.release.tensors.files[int(self.group.file.values[self.row])]

    @property
    def place(self) -> str:
        """Where it takes part: `embedding`, `layers.N`, `norm`, `logits`; else its name."""
        layer, part = int(self.group.layer.values[self.row]), self.role.partition(".")[0]
        if self.role in ("norm.final", "head"):
            return "logits" if self.role == "head" else "norm"
        if part in ("mtp", "vision", "audio", "projector"):
            return self.name
        return f"layers.{layer}" if layer >= 0 else "embedding" if part == "embedding" else self.name


class Difference(NamedTuple):
    """A tensor that is not the reference's."""

    name: str
    place: str
    relative_l2: float
    """||x - r|| / ||r||; share of the bytes that differ where the dtype's values are not read; 1 when it is missing."""


class Comparison(NamedTuple):
    """All tensors of both."""

    differ: list[Difference]
    compared: int
    other_form: list[str]
    """Names of the reference's tensors that are stored in another form: packed, fused, cut, or in a dtype not read."""


def compare(ours: Release, theirs: Release, progress: Progress = SILENT) -> Comparison:
    """Every tensor of one name and shape: the same bytes, or of two dtypes the values to the roundoff of the coarser.

    A tensor that only one release has is missing, unless both releases' leftovers come to as many parameters: then they
    are stored in another form. Raises ReleaseError when a file cannot be read.
    """
    mine, other = _tensors(ours), _tensors(theirs)
    both = [name for name in other if name in mine and _comparable(mine[name], other[name])]
    differ = []
    for done, name in enumerate(both):
        progress.update("comparing weights", done, len(both))
        if apart := _difference(mine[name], other[name]):
            differ.append(Difference(name, other[name].place, apart))
    compared = set(both)
    left, right = ([each for name, each in tensors.items() if name not in compared] for tensors in (mine, other))
    if _parameters(left) == _parameters(right) or not (_plain(ours) and _plain(theirs)):
        return Comparison(differ, len(both), [each.name for each in right])
    differ += [Difference(each.name, each.place, 1.0) for each in (*right, *left)
               if each.parameters and not (each.name in mine and each.name in other)]
    return Comparison(differ, len(both), [each.name for each in right if each.name in mine])


def _tensors(release: Release) -> dict[str, Tensor]:
    """By name, those that the model has and whose data is here."""
    families = {(each.pattern, each.shape, each.dtype): each for each in release.model.families}
    found: dict[str, Tensor] = {}
    for group in release.tensors.groups:
        family = families.get((group.pattern, group.shape, group.dtype))
        role = family.role if family else "other"
        if role.startswith("unused."):
            continue
        each = family.parameters / family.count if family else float(prod(group.shape))
        found |= {group.name(row): Tensor(release, group, row, role, each)
                  for row in range(group.count) if group.file.values[row] >= 0}
    return found


def _parameters(tensors: list[Tensor]) -> int:
    return round(sum(each.parameters for each in tensors))


def _plain(release: Release) -> bool:
    """Whether no weights are quantised."""
    return all(each.scheme in _PLAIN for each in release.model.families if each.parameters)


def _comparable(ours: Tensor, theirs: Tensor) -> bool:
    kinds = {ours.group.dtype, theirs.group.dtype}
    return ours.group.shape == theirs.group.shape and (len(kinds) == 1 or kinds <= _ROUNDOFF.keys())


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """0 when they are the same; else how far they are apart, as `Difference.relative_l2`."""
    if _same(ours, theirs):
        return 0.0
    difference = length = 0.0
    for x, r in _pairs(ours, theirs):
        with np.errstate(invalid="ignore", over="ignore"):
            difference += float(((x - r) ** 2).sum()) if _read(ours, theirs) else float((x != r).sum())
            length += float((r**2).sum()) if _read(ours, theirs) else len(r)
    if not _read(ours, theirs):
        return difference / length
    return sqrt(difference / length) if isfinite(difference) and isfinite(length) and length else FAR


def _same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the bytes are, or of two dtypes the values to the roundoff of the coarser."""
    if ours.group.dtype == theirs.group.dtype:
        return all(x == r for x, r in zip(_parts(ours), _parts(theirs), strict=True))
    coarse = max(ours.group.dtype, theirs.group.dtype, key=lambda dtype: _ROUNDOFF[dtype])
    with np.errstate(invalid="ignore"):
        return all(bool((np.abs(x - r) <= _ROUNDOFF[coarse] * np.maximum(np.abs(x), np.abs(r))
                         + _SMALLEST.get(coarse, 0.0)).all()) for x, r in _pairs(ours, theirs))


def _read(ours: Tensor, theirs: Tensor) -> bool:
    return ours.group.dtype in _ROUNDOFF and theirs.group.dtype in _ROUNDOFF


def _pairs(ours: Tensor, theirs: Tensor) -> Iterator[tuple[Values, Values]]:
    """Their values part by part; their bytes where the dtype is not read."""
    for x, r in zip(_parts(ours), _parts(theirs), strict=True):
        yield _values(x, ours.group.dtype), _values(r, theirs.group.dtype)


def _parts(tensor: Tensor) -> Iterator[bytes]:
    """The data, as many elements at a time as fit."""
    size = _ELEMENTS * (np.dtype(_STORED[tensor.group.dtype]).itemsize if tensor.group.dtype in _STORED else 1)
    left, name = tensor.group.tensor_bytes, tensor.name
    try:
        with tensor.path.open("rb") as file:
            file.seek(int(tensor.group.start.values[tensor.row]))
            while left:
                part = file.read(min(size, left))
                if len(part) < min(size, left):
                    raise ReleaseError(f"{tensor.path} ends inside {name}", "get the file again")
                left -= len(part)
                yield part
    except OSError as error:
        raise ReleaseError(f"cannot read {tensor.path}: {error.strerror}", "check permissions and disk") from None


def _values(part: bytes, dtype: str) -> Values:
    raw = np.frombuffer(part, _STORED.get(dtype, "u1"))
    if dtype == "BF16":
        raw = (raw.astype("<u4") << 16).view("<f4")
    return raw.astype(np.float64)
