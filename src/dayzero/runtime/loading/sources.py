"""What values of a tensor are made of: a stored tensor as it is here, those with scales in `quantised`.

Needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .files import Files, Stored
from .memory import scratch
from .pieces import Piece

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
"""torch's dtypes of those of safetensors that have one number in each item."""
POWERS = ("U8", "F8_E8M0")
"""Powers of two, stored as their exponent + 127."""


class Source(Protocol):
    """Values in files."""

    @property
    def name(self) -> str:
        """Of the tensor, for messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what `block` gives."""

    @property
    def place(self) -> tuple[int, int]:
        """(file, first byte), for an order of reading."""

    def values(self, files: Files, piece: Piece) -> torch.Tensor:
        """The values of a piece of it, in the piece's size."""

    @property
    def stored(self) -> float:
        """Bytes that one value has in the files."""

    @property
    def turned(self) -> bool:
        """Whether it is a matrix that lies [in, out]."""


def width(shape: tuple[int, ...]) -> int:
    """Columns of a source of that shape."""
    return shape[-1] if shape else 1


@dataclass(frozen=True, eq=False)
class Plain:
    """A tensor as it is stored."""

    tensor: Stored
    turned: bool = False

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.tensor.dtype]

    @property
    def place(self) -> tuple[int, int]:
        return self.tensor.file, self.tensor.start

    @property
    def stored(self) -> float:
        return self.dtype.itemsize

    def values(self, files: Files, piece: Piece) -> torch.Tensor:
        """All from the first to the last is read, and stays until this thread reads again."""
        size = self.dtype.itemsize
        read = scratch(piece.span * size)
        files.read(self.tensor.file, self.tensor.start + piece.start * size, [bytes_of(read)])
        return torch.as_strided(read.view(self.dtype), piece.size, piece.strides)


def items(files: Files, tensor: Stored, first: int, last: int) -> torch.Tensor:
    """Stored items from the first up to, not including, the last."""
    dtype = DTYPES[tensor.dtype]
    made = torch.empty(last - first, dtype=dtype)
    files.read(tensor.file, tensor.start + first * dtype.itemsize, [bytes_of(made)])
    return made


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Memory of a tensor that lies row by row on the host."""
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
