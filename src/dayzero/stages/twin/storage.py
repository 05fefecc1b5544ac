"""How one matrix lies in the files: plain, or quantised with scales beside it; shapes and bytes for any size of it.

Layouts: 8-bit floats with a scale for all, each row, each block; OCP MX and NVFP4 pairs of 4-bit floats; integers in
words along the input (compressed-tensors), along the rows of a turned matrix (GPTQ) or along its columns in the order
0 2 4 6 1 3 5 7 (AWQ). What is read from a release is checked against its own shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dayzero.errors import ReleaseError
from dayzero.floats import LARGEST

from .floats import FP4_MAX, PLAIN, Array, from_plain, to_fp4, to_plain, to_power

WEIGHTS = ("weight", "packed", "packed_transposed")
POWERS = ("U8", "F8_E8M0")
TURNED_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns each of the eight 4-bit fields of a word holds (AWQ)."""
LARGE_INPUT = 8.0
"""Largest activation that stated scales of activations allow for."""
WHOLE = 0
"""Values that share a scale: all of the axis."""
_HINT = "a twin can be made of the release before quantisation"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One tensor of a module."""

    form: str
    """What it is to the module: weight, packed, scale ... (vocabulary)."""
    dtype: str
    """safetensors dtype."""
    shape: Shape
    """As stored in the release."""


@dataclass(frozen=True)
class Storage:
    """How a module's matrix and its companions are stored."""

    parts: Mapping[str, Part]
    """Ending of the name -> tensor."""
    owner: str
    """Ending of the matrix itself."""
    scheme: str
    """Scheme of the matrix: bf16, fp8, mxfp4, nvfp4, int4 ..."""
    values: int
    """Logical values in a stored item."""
    axis: int = -1
    """Stored axis along which they are packed."""
    turned: bool = False
    """The stored matrix is [in, out]."""
    folded: bool = False
    """The input is stored as [groups, bytes of a group]."""
    block: tuple[int, ...] | None = None
    """Logical values along each axis that share a scale, `WHOLE` for all of the axis; None: one scale for all."""

    @property
    def weight(self) -> Part:
        """The matrix."""
        return self.parts[self.owner]

    def logical(self) -> Shape:
        """[..., out, in] of the release's matrix."""
        shape = list(self.weight.shape)
        if self.folded:
            shape[-2:] = [shape[-2] * shape[-1] * self.values]
        else:
            shape[self.axis] *= self.values
        if self.turned:
            shape[-2:] = shape[:-3:-1]
        return tuple(shape)

    def stored(self, logical: Shape) -> dict[str, Shape]:
        """Stored shape of each part for a matrix of another size."""
        return {end: self._shape(part, end, logical) for end, part in self.parts.items()}

    def _shape(self, part: Part, end: str, logical: Shape) -> Shape:
        if end == self.owner:
            return self._stored_weight(logical)
        if part.form == "scale":
            return self._scales(part, logical)
        if part.form == "zero_point":
            return self._zeros(self._scales(part, logical))
        if part.form == "buffer" and end.endswith("g_idx"):
            return (logical[-1],)
        return part.shape

    def _stored_weight(self, logical: Shape) -> Shape:
        shape = [*logical[:-2], logical[-1], logical[-2]] if self.turned else list(logical)
        if self.folded:
            group = self.weight.shape[-1] * self.values
            return (*shape[:-1], -(-shape[-1] // group), self.weight.shape[-1])
        if shape:
            shape[self.axis] = -(-shape[self.axis] // self.values)
        return tuple(shape)

    def _scales(self, part: Part, logical: Shape) -> Shape:
        if self.block is None:
            return part.shape
        counts = [1 if size == WHOLE else -(-extent // size) for extent, size in zip(logical, self.block, strict=True)]
        if self.turned:
            counts[-2:] = counts[:-3:-1]
        return tuple(counts if part.form == "zero_point" else counts[:len(part.shape)])

    def _zeros(self, scales: Shape) -> Shape:
        packed = list(scales)
        axis = -1 if self.turned else 0
        packed[axis] = -(-packed[axis] // self.values)
        return tuple(packed)

    def encode(self, matrix: Array) -> dict[str, Array]:
        """The parts, as arrays of the stored items, of a float32 matrix [..., out, in]."""
        if len(self.parts) == 1 and self.values == 1:
            return {self.owner: to_plain(matrix, self.weight.dtype)}
        scale_end = next((end for end, part in self.parts.items() if part.form == "scale"), None)
        made = self._others(matrix)
        overall = float(np.max(made.pop("", np.float32(1))))
        scales = self._scale_values(matrix, self.parts[scale_end] if scale_end else None, overall)
        factors = self._spread(scales.astype(np.float32) * np.float32(overall), matrix.shape)
        made[self.owner] = self._items(matrix / factors)
        if scale_end:
            made[scale_end] = self._stored_scales(scales, self.parts[scale_end], matrix.shape)
        return made

    def _others(self, matrix: Array) -> dict[str, Array]:
        """Scales of all, zero points and tables; under an empty name the scale of all that the others multiply."""
        made: dict[str, Array] = {}
        for end, part in self.parts.items():
            if part.form == "global_scale":
                made[end] = to_plain(np.full(part.shape, self._overall(end, matrix), np.float32), part.dtype)
                if "weight" in end and "amax" not in end:
                    value = from_plain(made[end], part.dtype)
                    made[""] = 1 / value if "global" in end else value
            elif part.form == "zero_point":
                made[end] = self._zero_items(self._shape(part, end, matrix.shape), part.dtype)
            elif part.form == "buffer":
                made[end] = self._table(end, part, matrix.shape)
        return made

    def _overall(self, end: str, matrix: Array) -> float:
        """What is stored for the whole matrix, or for activations."""
        largest = float(np.abs(matrix).max()) if "weight" in end else LARGE_INPUT
        steps = FP4_MAX * LARGEST["F8_E4M3"] if self.scheme == "nvfp4" else LARGEST["F8_E4M3"]
        if "amax" in end:
            return largest
        return steps / largest if "global" in end else largest / steps

    def _scale_values(self, matrix: Array, part: Part | None, overall: float) -> Array:
        """One scale for each block, as the file's dtype can hold it."""
        if part is None:
            return np.ones((1,) * matrix.ndim, np.float32)
        block = self.block or (WHOLE,) * matrix.ndim
        largest = np.abs(matrix)
        for axis, size in enumerate(block):
            extent = matrix.shape[axis]
            largest = np.maximum.reduceat(largest, np.arange(0, extent, size or max(1, extent)), axis=axis)
        if part.dtype in POWERS:  # OCP MX 1.0, section 6.3: the largest's exponent, less that of the format's largest
            steps = 2.0 ** np.floor(np.log2(self._largest()))
            return from_plain(to_power(largest / steps), "F8_E8M0")
        exact = np.maximum(largest / self._largest() / overall, 1e-9)
        return from_plain(to_plain(exact, part.dtype), part.dtype)

    def _largest(self) -> float:
        if self.scheme.startswith("int"):
            return float(2 ** (int(self.scheme[3:]) - 1) - 1)
        return LARGEST.get(self.weight.dtype, FP4_MAX)

    def _spread(self, scales: Array, shape: Shape) -> Array:
        for axis, size in enumerate(self.block or ()):
            if size > 1:
                scales = np.repeat(scales, size, axis=axis)[(slice(None),) * axis + (slice(shape[axis]),)]
        return scales

    def _stored_scales(self, scales: Array, part: Part, shape: Shape) -> Array:
        turned = np.swapaxes(scales, -1, -2) if self.turned else scales
        stored = to_power(turned) if part.dtype in POWERS else to_plain(turned, part.dtype)
        return stored.reshape(self._scales(part, shape))

    def _items(self, steps: Array) -> Array:
        """Stored items of values in units of their scales."""
        shape = self._stored_weight(steps.shape)
        if self.scheme in ("mxfp4", "nvfp4", "fp4"):
            codes = to_fp4(steps)
            pairs: Array = (codes[..., 0::2] | (codes[..., 1::2] << 4)).reshape(shape)
            return pairs
        if self.scheme.startswith("int") and self.values > 1:
            return self._words(steps).reshape(shape)
        if self.weight.dtype == "I8":
            return np.clip(np.rint(steps), -127, 127).astype(np.int8)
        return to_plain(steps, self.weight.dtype)

    def _words(self, steps: Array) -> Array:
        bits = int(self.scheme[3:])
        half = 1 << (bits - 1)
        codes = (np.clip(np.rint(steps), -half, half - 1) + half).astype(np.uint64)
        if self.turned:
            codes = np.swapaxes(codes, -1, -2)
        return _packed(codes, bits, self.values, self.axis, PLAIN[self.weight.dtype], ordered=self._is_ordered())

    def _is_ordered(self) -> bool:
        return self.turned and self.axis == -1 and self.values == len(TURNED_ORDER)

    def _zero_items(self, shape: Shape, dtype: str) -> Array:
        """Zero points of symmetric integers: the middle, which GPTQ stores less one."""
        bits = int(self.scheme[3:])
        middle = (1 << (bits - 1)) - (1 if self.turned and not self._is_ordered() else 0)
        word = sum(middle << (bits * place) for place in range(self.values))
        return np.full(shape, np.array(word, np.uint64)).astype(PLAIN[dtype])

    def _table(self, end: str, part: Part, shape: Shape) -> Array:
        if end.endswith("weight_shape"):
            return np.array(shape[-2:], PLAIN[part.dtype])
        if end.endswith("g_idx"):
            size = (self.block or (WHOLE,))[-1] or shape[-1]
            return (np.arange(shape[-1]) // size).astype(PLAIN[part.dtype])
        raise ReleaseError(f"a table {end} beside a matrix of scheme {self.scheme}: how it is made is not known", _HINT)


def _packed(codes: Array, bits: int, count: int, axis: int, dtype: type, *, ordered: bool) -> Array:
    """Words of `count` codes along an axis, the first in the lowest bits."""
    moved = np.moveaxis(codes, axis, -1)
    missing = -moved.shape[-1] % count
    moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    fields = moved.reshape(*moved.shape[:-1], -1, count)
    if ordered:
        fields = fields[..., TURNED_ORDER]
    words = (fields << (np.arange(count, dtype=np.uint64) * np.uint64(bits))).sum(-1, dtype=np.uint64)
    made: Array = np.moveaxis(words, -1, axis).astype(np.dtype(dtype).str.replace("i", "u")).view(dtype)
    return made


def storage(parts: Mapping[str, Part], scheme: str, values: int, sizes: Iterable[int], name: str) -> Storage:
    """How a module stores its matrix. `values`: logical values in a stored item; `sizes`: groups and blocks that the
    config states. Raises ReleaseError for a layout that is not known."""
    if scheme in ("packed", "fp4"):
        raise ReleaseError(f"{name} is packed in a way that is not known", _HINT)
    owner = next(end for form in WEIGHTS for end, part in parts.items() if part.form == form)
    weight = parts[owner]
    scale = next((part for part in parts.values() if part.form == "scale"), None)
    made = Storage(parts, owner, scheme, values)
    if weight.form == "packed_transposed":
        columns = scale is not None and weight.shape[-1] != scale.shape[-1]
        made = replace(made, turned=True, axis=-1 if columns else -2)
    if scale is not None and values > 1 and len(weight.shape) == len(scale.shape) + 1:
        made = replace(made, folded=True)
    if scale is not None and prod(scale.shape) != 1:
        made = replace(made, block=_block(made.logical(), scale.shape, made.turned, tuple(sizes)))
    elif scale is not None and len(scale.shape) == len(made.logical()):
        made = replace(made, block=(WHOLE,) * len(scale.shape))
    stored = {} if made.block == () else made.stored(made.logical())
    odd = next((end for end, part in parts.items() if stored.get(end) != part.shape), None)
    if odd is not None:
        raise ReleaseError(f"{name}{odd} is stored in a layout that is not known: {scheme}, {list(parts[odd].shape)} "
                           f"beside {list(weight.shape)}", _HINT)
    return made


def _block(logical: Shape, scales: Shape, turned: bool, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Values along each axis that share a scale; empty when the scales do not fit."""
    if turned and len(scales) > 1:
        scales = (*scales[:-2], scales[-1], scales[-2])
    if len(scales) == len(logical) - 1:
        scales = (*scales, 1)
    if len(scales) != len(logical):
        return ()
    return tuple(_size(extent, count, sizes) for extent, count in zip(logical, scales, strict=True))


def _size(extent: int, count: int, sizes: tuple[int, ...]) -> int:
    if count == extent:
        return 1
    if count == 1 and extent not in sizes:
        return next((size for size in sizes if size > extent), WHOLE)
    stated = next((size for size in sizes if -(-extent // size) == count), None)
    if stated is not None:
        return stated
    least = -(-extent // count)
    power = 1 << (least - 1).bit_length()
    return power if -(-extent // power) == count else least
