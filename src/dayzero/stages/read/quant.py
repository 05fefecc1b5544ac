"""Quantisation from the files: the scheme of a weight and how many values one stored item holds.

A packed weight is recognised by its dtype together with the scales that lie beside it (compressed-tensors, GPTQ, AWQ,
MX and NVFP4 layouts of the safetensors checkpoints that exist); the config is only asked for the bits of integers that
the shapes leave open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dayzero.schema import TensorGroup

PLAIN = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64", "C64": "c64"}
FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
EXPONENTS = ("U8", "F8_E8M0")
"""dtypes of scales that are powers of two."""
MX_GROUP = 32
"""Values that share a scale in MX formats."""
BYTES = ("U8", "I8", "F8_E8M0")
"""dtypes that may hold anything of 8 bits."""
INDICES = ("BOOL", "I16", "U16")
WORD = {"I32": 32, "U32": 32, "I64": 64, "U64": 64}

Siblings = Mapping[str, TensorGroup]
"""Form -> the tensors of the same module that have it."""


@dataclass(frozen=True)
class Stored:
    """How a matrix is stored."""

    scheme: str
    """bf16, f16, f32, fp8, mxfp8, mxfp4, nvfp4, int4, int8 ...; `packed` when the bits are not known."""
    values: Fraction = Fraction(1)
    """Logical values in one stored item; 0: the tensor holds no parameters."""
    axis: int = -1
    """Stored axis along which they are packed."""
    transposed: bool = False
    """The stored matrix is [in, out]."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Logical shape, [..., out, in] of a matrix."""
        shape = list(stored)
        if self.values > 1 and -len(shape) <= self.axis < len(shape):
            shape[self.axis] = int(shape[self.axis] * self.values)
        if self.transposed and len(shape) > 1:
            shape[-1], shape[-2] = shape[-2], shape[-1]
        return tuple(shape)


def stored_as(group: TensorGroup, form: str, siblings: Siblings, config: Mapping[str, Any] | None) -> Stored:
    """How the weight (or bias) `group` of that form is stored. `siblings`: what else its module has; `config`: the
    config's quantisation table, if any."""
    scale = siblings.get("scale")
    if group.dtype in PLAIN:
        return Stored(PLAIN[group.dtype])
    if group.dtype in FLOAT8:
        return Stored("mxfp8" if scale is not None and _is_micro(group, scale) else "fp8")
    if group.dtype == "F4":
        return Stored(_fp4(scale))
    if group.dtype in WORD:
        return _integers(group, form, siblings, config)
    if group.dtype in BYTES:
        return _bytes(group, form, scale)
    return _index(group) if group.dtype in INDICES else Stored(group.dtype.lower())  # a float that has no group here


def _is_micro(group: TensorGroup, scale: TensorGroup) -> bool:
    """Whether each row has a power of two for every 32 values, as MX formats do; larger blocks are plain 8-bit floats
    with rounded scales."""
    rows, columns = group.shape[:-1], group.shape[-1] if group.shape else 0
    return scale.dtype in EXPONENTS and scale.shape == (*rows, -(-columns // MX_GROUP))


def _fp4(scale: TensorGroup | None) -> str:
    return "mxfp4" if scale is not None and scale.dtype in EXPONENTS else "nvfp4"


def _bytes(group: TensorGroup, form: str, scale: TensorGroup | None) -> Stored:
    """Bytes: the dtype of their scales tells two 4-bit floats from one 8-bit integer."""
    if scale is None:
        return Stored("packed") if form != "weight" else _index(group) if group.dtype != "I8" else Stored("int8")
    if form == "weight" and group.dtype == "U8" and group.shape[-1:] == (1,):
        return Stored("fp4", Fraction(2), axis=0)  # bitsandbytes: a flat column of pairs
    if scale.dtype in FLOAT8 or scale.dtype in EXPONENTS:
        return Stored(_fp4(scale), Fraction(2))
    return Stored("int8")


def _index(group: TensorGroup) -> Stored:
    """A table of indices: not a parameter."""
    return Stored(group.dtype.lower(), Fraction(0))


def _integers(group: TensorGroup, form: str, siblings: Siblings, config: Mapping[str, Any] | None) -> Stored:
    """Words of packed integers: their rows, columns and scales tell how many bits a value has, or the config does."""
    scale, word = siblings.get("scale"), WORD[group.dtype]
    if scale is None or form in ("weight", "bias") or len(group.shape) < 2:
        return _index(group)
    transposed, axis, bits = form == "packed_transposed", -1, 0
    if transposed and len(scale.shape) > 1 and scale.shape[-1]:
        zeros = siblings.get("zero_point")
        if group.shape[-1] != scale.shape[-1]:  # packed along out: columns hold several values each
            bits = word * group.shape[-1] // scale.shape[-1]
        elif zeros is not None and zeros.shape:
            axis, bits = -2, word * zeros.shape[-1] // scale.shape[-1]
        else:
            axis = -2
    bits = bits if 1 <= bits <= 16 else _bits(group, scale, axis, config)
    if not bits:
        return Stored("packed", axis=axis, transposed=transposed)
    return Stored(f"int{bits}", Fraction(word, bits), axis, transposed)


def _bits(group: TensorGroup, scale: TensorGroup, axis: int, config: Mapping[str, Any] | None) -> int:
    """Bits of one value as the config states them, checked against the group size where it states one; 0: unknown."""
    stored, groups = group.shape[axis], scale.shape[axis] if len(scale.shape) > 1 else 1
    stated = _stated(config or {})
    for bits, size in stated:
        values = stored * WORD[group.dtype] // bits
        if groups == 1 or size is None or -(-values // size) == groups:
            return bits
    return stated[0][0] if len(stated) == 1 else 0


def _stated(config: Mapping[str, Any]) -> list[tuple[int, int | None]]:
    """(bits, group size) pairs anywhere in a quantisation table."""
    found: list[tuple[int, int | None]] = []
    for key in ("num_bits", "bits", "w_bit"):
        bits, size = config.get(key), config.get("group_size", config.get("q_group_size"))
        if isinstance(bits, int) and not isinstance(bits, bool) and 1 <= bits <= 16:
            found.append((bits, size if isinstance(size, int) and size > 0 else None))
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in ("input_activations", "output_activations", "kv_cache_scheme"):
            found += _stated(value)
    return found
