"""Narrow floats without torch: bf16, 8-bit and 4-bit floats and powers of two as the bytes that files hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dayzero.floats import FLOATS, LARGEST, decode

Array = np.ndarray[Any, np.dtype[Any]]
FP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight codes of a 4-bit float (OCP MX 1.0, E2M1)."""
FP4_MAX = 6.0


def to_bf16(values: Array) -> Array:
    """bf16 as uint16, rounded to the nearest, ties to even."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@cache
def _codes(dtype: str) -> Array:
    """Code of the nearest 8-bit float for each of the 65,536 half floats; what is too large is the largest."""
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    known = decode(np.arange(128, dtype=np.uint8), dtype)
    order = np.argsort(np.where(np.isnan(known), np.inf, known), kind="stable")[:np.sum(np.isfinite(known))]
    nearest = order[_nearest(np.nan_to_num(np.abs(half), nan=0.0, posinf=6.5e4), known[order])]
    negative = np.signbit(half) & (nearest > 0)
    return (nearest + 128 * negative).astype(np.uint8)


def _nearest(values: Array, levels: Array) -> Array:
    """Index of the nearest of rising levels; in the middle the even one."""
    after = np.clip(np.searchsorted(levels, values), 1, len(levels) - 1)
    below, above = values - levels[after - 1], levels[after] - values
    return np.where((below < above) | ((below == above) & (after % 2 == 1)), after - 1, after)


def to_fp8(values: Array, dtype: str) -> Array:
    """Codes of an 8-bit float as uint8. `values` lie in its range and may be rounded to half floats first."""
    halves = np.clip(values, -LARGEST[dtype], LARGEST[dtype]).astype(np.float16)
    codes: Array = np.take(_codes(dtype), halves.view(np.uint16))
    return codes


@cache
def _fp4_codes() -> Array:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    nearest = _nearest(np.nan_to_num(np.abs(half), nan=0.0, posinf=6.5e4), np.array(FP4_LEVELS, np.float32))
    codes: Array = (nearest + 8 * (np.signbit(half) & (nearest > 0))).astype(np.uint8)
    return codes


def to_fp4(values: Array) -> Array:
    """Codes 0 to 15 of a 4-bit float as uint8; what is too large is 6."""
    return np.take(_fp4_codes(), np.clip(values, -FP4_MAX, FP4_MAX).astype(np.float16).view(np.uint16))


def to_power(values: Array) -> Array:
    """The largest power of two that is at most each positive value, as the exponent + 127 in uint8."""
    exponents = np.floor(np.log2(np.maximum(values, 2.0**-126)))
    codes: Array = np.clip(exponents + 127, 0, 254).astype(np.uint8)
    return codes


def to_plain(values: Array, dtype: str) -> Array:
    """Values in a dtype of the safetensors format that holds one number in each element. Raises KeyError for others."""
    if dtype == "BF16":
        return to_bf16(values)
    if dtype in LARGEST:
        return to_fp8(values, dtype)
    if dtype == "F8_E8M0":
        return to_power(values)
    return np.asarray(values).astype(PLAIN[dtype])


def from_plain(codes: Array, dtype: str) -> Array:
    """float32 of what `to_plain` made."""
    if dtype not in FLOATS:
        return codes.astype(np.float32)
    return decode(np.ascontiguousarray(codes), dtype).reshape(codes.shape)


PLAIN = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "I16": np.int16,
         "I8": np.int8, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "BOOL": np.bool_,
         "C64": np.complex64}  # fmt: skip
"""numpy types of the dtypes that numpy has."""
