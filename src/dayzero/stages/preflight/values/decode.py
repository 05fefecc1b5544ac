"""Values of small tensors, read from their place in a file; formats by their definitions, with numpy alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dayzero.schema import Release, TensorGroup

Values = np.ndarray[Any, np.dtype[np.float32]]

_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_SPELLINGS = {
    "bf16": "BF16", "bfloat16": "BF16", "f16": "F16", "fp16": "F16", "float16": "F16", "half": "F16", "f32": "F32",
    "fp32": "F32", "float32": "F32", "float": "F32", "fp8": "F8_E4M3", "fp8_e4m3": "F8_E4M3",
    "float8_e4m3fn": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def _e4m3() -> Values:
    """OCP 8-bit floating point, e4m3fn: bias 7, no infinity, NaN where exponent and mantissa are all ones."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    size[(codes & 127) == 127] = np.nan
    return np.where(codes > 127, -size, size).astype(np.float32)


def _e8m0() -> Values:
    """OCP microscaling: powers of two with bias 127; 255 is NaN."""
    size = np.ldexp(np.float64(1), np.arange(256) - 127)
    size[255] = np.nan
    return size.astype(np.float32)


_TABLES = {"F8_E4M3": _e4m3(), "F8_E8M0": _e8m0(),
           "F8_E5M2": (np.arange(256, dtype="<u2") << 8).view("<f2").astype(np.float32)}
FLOATS = frozenset((*_PLAIN, "BF16", *_TABLES))
"""dtypes that `decode` knows."""


def dtype_named(word: str) -> str | None:
    """safetensors' name of a floating dtype in one of its usual spellings; None: not a floating dtype known here."""
    return _SPELLINGS.get(word.lower().removeprefix("torch."), word if word in FLOATS else None)


def decode(raw: bytes, dtype: str) -> Values:
    """The values of `raw`, of one of FLOATS, as 32-bit floats (all but 64-bit ones fit exactly)."""
    if dtype in _PLAIN:
        with np.errstate(over="ignore"):
            return np.frombuffer(raw, _PLAIN[dtype]).astype(np.float32)
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
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


class Reader:
    """Reads tensors of a release's files. A context manager: it keeps the files open."""

    def __init__(self, release: Release) -> None:
        self.root = Path(release.root) if release.root else None
        self.files = release.tensors.files
        self.bytes_read = 0
        self._open: dict[int, int | None] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def values(self, group: TensorGroup, row: int) -> Values | None:
        """The values of one tensor, flat; None where its data is not here: no file, one cut short, or a hole."""
        size, start = group.tensor_bytes, int(group.start.values[row])
        handle = self._handle(int(group.file.values[row]))
        if handle is None or group.dtype not in FLOATS or not size or not _written(handle, start, size):
            return None
        try:
            raw = os.pread(handle, size, start)
        except OSError:
            return None
        self.bytes_read += len(raw)
        return decode(raw, group.dtype) if len(raw) == size else None

    def all(self, group: TensorGroup, rows: list[int]) -> Iterator[tuple[int, Values]]:
        """(row, values) of those whose data is here, in the order of the files."""
        for row in sorted(rows, key=lambda row: (int(group.file.values[row]), int(group.start.values[row]))):
            values = self.values(group, row)
            if values is not None:
                yield row, values

    def _handle(self, file: int) -> int | None:
        if file not in self._open:
            self._open[file] = None
            if self.root is not None and file >= 0:
                with contextlib.suppress(OSError):
                    handle = os.open(self.root / self.files[file], os.O_RDONLY)
                    self._stack.callback(os.close, handle)
                    self._open[file] = handle
        return self._open[file]


def _written(handle: int, start: int, size: int) -> bool:
    """Whether any of these bytes was ever written, as far as the file system tells."""
    try:
        return os.lseek(handle, start, os.SEEK_DATA) < start + size
    except OSError:  # nothing but a hole up to the end
        return False
