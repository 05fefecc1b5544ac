"""Floating-point formats of files, by their definitions, with numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float32]]

_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_SPELLINGS = {
    "bf16": "BF16", "bfloat16": "BF16", "f16": "F16", "fp16": "F16", "float16": "F16", "half": "F16", "f32": "F32",
    "fp32": "F32", "float32": "F32", "float": "F32", "f64": "F64", "fp64": "F64", "float64": "F64",
    "double": "F64", "fp8": "F8_E4M3", "fp8_e4m3": "F8_E4M3",
    "float8_e4m3fn": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0, "F8_E4M3FNUZ": 240.0, "F8_E5M2FNUZ": 57344.0}
"""Largest number of the 8-bit floats (OCP 8-bit floating point 1.0; arXiv:2206.02915 for FNUZ)."""


def _eight_bits(dtype: str, mantissa: int, bias: int) -> Values:
    """Of the 256 codes. None of these has infinities; what is above the largest number is NaN."""
    codes = np.arange(256)
    exponent, fraction = (codes & 127) >> mantissa, (codes & ((1 << mantissa) - 1)) * 2.0**-mantissa
    size = np.where(exponent > 0, np.ldexp(1 + fraction, exponent - bias), np.ldexp(fraction, 1 - bias))
    size[size > LARGEST[dtype]] = np.nan
    if dtype.endswith("FNUZ"):
        size[128] = np.nan  # there is no negative zero
    made: Values = np.where(codes > 127, -size, size).astype(np.float32)
    return made


def _e8m0() -> Values:
    """OCP microscaling: powers of two with bias 127; 255 is NaN."""
    size = np.ldexp(np.float64(1), np.arange(256) - 127)
    size[255] = np.nan
    return size.astype(np.float32)


_TABLES = {"F8_E4M3": _eight_bits("F8_E4M3", 3, 7), "F8_E8M0": _e8m0(),
           "F8_E5M2": (np.arange(256, dtype="<u2") << 8).view("<f2").astype(np.float32),
           "F8_E4M3FNUZ": _eight_bits("F8_E4M3FNUZ", 3, 8), "F8_E5M2FNUZ": _eight_bits("F8_E5M2FNUZ", 2, 16)}
FLOATS = frozenset((*_PLAIN, "BF16", *_TABLES))
"""dtypes that `decode` knows."""
ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8, "F8_E4M3": 2.0**-4, "F8_E5M2": 2.0**-3}
"""Unit roundoff of the dtypes that are computed in: the largest relative error of rounding to nearest, 2^-p of p bits
of significand, the hidden one counted (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 2.1)."""


def dtype_named(word: str) -> str | None:
    """safetensors' name of a floating dtype in one of its usual spellings; None: not a floating dtype known here."""
    return _SPELLINGS.get(word.lower().removeprefix("torch."), word if word in FLOATS else None)


def roundoff(word: str) -> float:
    """Unit roundoff of a dtype in one of its usual spellings. Raises KeyError for one that nothing is computed in."""
    return ROUNDOFF[dtype_named(word) or word]


def decode(raw: bytes | memoryview | np.ndarray[Any, Any], dtype: str) -> Values:
    """The values of `raw`, of one of FLOATS, as 32-bit floats (all but 64-bit ones fit exactly)."""
    if dtype in _PLAIN:
        with np.errstate(over="ignore"):
            return np.frombuffer(raw, _PLAIN[dtype]).astype(np.float32)
    if dtype == "BF16":
        bits = np.frombuffer(raw, "<u2").astype("<u4")
        bits *= np.uint32(1 << 16)  # vectorised, which a shift is not
        return bits.view("<f4")
    return np.asarray(_TABLES[dtype][np.frombuffer(raw, np.uint8)])


def cast(values: Values, dtype: str) -> Values:
    """`values` after rounding to `dtype` (to nearest, ties to even, as hardware does), as 32-bit floats."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("<u4").view("<f4")
        return np.where(np.isfinite(values), rounded, values)
    if dtype in _PLAIN:
        with np.errstate(over="ignore"):
            return values.astype(_PLAIN[dtype]).astype(np.float32)
    table = np.unique(_TABLES[dtype][np.isfinite(_TABLES[dtype])])
    above = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    return np.where(values - low <= high - values, low, high)
