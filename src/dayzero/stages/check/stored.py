"""The tensors of a release's files, one by one: where each takes part, and its data in parts. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import ReleaseError
from dayzero.schema import Release, TensorGroup

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Dtypes whose values are read, and how they are stored."""
PLAIN = ("bf16", "f16", "f32", "f64", "c64")
"""Schemes that are no quantisation."""
_PARTS = ("mtp", "vision", "audio", "projector")
"""Parts of a model that no place of its layers stands for."""
_ELEMENTS = 1 << 22
"""Elements that are read at a time."""
Values = NDArray[Any]


class Tensor(NamedTuple):
    """One tensor of a release."""

    release: Release
    group: TensorGroup
    row: int
    role: str
    scheme: str
    """As of a WeightFamily."""
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
        if part in _PARTS:
            return self.name
        return f"layers.{layer}" if layer >= 0 else "embedding" if part == "embedding" else self.name

    @property
    def part(self) -> str:
        """The place, or what larger part of the model it is of: what is stored in another form stays inside it."""
        part, place = self.role.partition(".")[0], self.place
        return part if part in _PARTS else "" if place == self.name else place

    @property
    def is_idle(self) -> bool:
        """Whether a model is the same without it: a table that is computed anyway, a head beside a tied embedding."""
        return self.role.partition(".")[0] in ("unused", "buffer")

    @property
    def is_quantised(self) -> bool:
        """Whether it is a weight in a format that has scales or packs values."""
        return bool(self.parameters) and self.scheme not in PLAIN


def tensors_of(release: Release) -> dict[str, Tensor]:
    """By name, those whose data is here."""
    families = {(each.pattern, each.shape, each.dtype): each for each in release.model.families}
    found: dict[str, Tensor] = {}
    for group in release.tensors.groups:
        family = families.get((group.pattern, group.shape, group.dtype))
        role, scheme = (family.role, family.scheme) if family else ("other", group.dtype.lower())
        each = family.parameters / family.count if family else float(prod(group.shape))
        found |= {group.name(row): Tensor(release, group, row, role, scheme, each)
                  for row in range(group.count) if group.file.values[row] >= 0}
    return found


def parts(tensor: Tensor) -> Iterator[bytes]:
    """The data, as many elements at a time as fit. Raises ReleaseError when the file cannot be read."""
    size = _ELEMENTS * (np.dtype(FLOATS[tensor.group.dtype]).itemsize if tensor.group.dtype in FLOATS else 1)
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


def values(part: bytes, dtype: str) -> Values:
    """The numbers, exactly: bf16 as f32, what is not read as its bytes."""
    raw = np.frombuffer(part, FLOATS.get(dtype, "u1"))
    return (raw.astype("<u4") << 16).view("<f4") if dtype == "BF16" else raw


def cast(numbers: Values, dtype: str) -> Values:
    """What a cast to `dtype` makes of them: rounded to nearest, ties to even; f64 by way of f32, like libraries."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype == "F64":
            return numbers.astype("<f8")
        single = numbers.astype("<f4")
        if dtype != "BF16":
            return single.astype(FLOATS[dtype])
        bits = single.view("<u4").astype(np.uint64)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("<u4").view("<f4")
        return np.where(np.isfinite(single), rounded, single)
