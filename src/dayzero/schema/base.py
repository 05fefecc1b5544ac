"""What all nouns share: frozen, keyword-only structs; JSON through msgspec with numpy columns; digests."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any, TypeVar

import msgspec
import numpy as np

SCHEMA_VERSION = 2
T = TypeVar("T")


class Noun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of everything that dayzero itself writes. Unknown keys are ignored, so that a newer file can be read."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that a user writes. Unknown keys are errors; `None` or absent means "not said"."""


class Column:
    """An immutable integer array of one dimension, stored in JSON as base64 of compressed little-endian bytes."""

    __slots__ = ("values",)

    def __init__(self, values: Any) -> None:
        self.values: np.ndarray[Any, np.dtype[np.int64]] = np.ascontiguousarray(values, dtype="<i8")
        self.values.setflags(write=False)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    def __repr__(self) -> str:
        return f"Column({len(self)} values)"

    def pack(self) -> str:
        """Text for JSON. Differences are stored: indices and offsets mostly rise, and then compress to little."""
        deltas = np.diff(self.values, prepend=0).astype("<i8")
        return base64.b64encode(zlib.compress(deltas.tobytes(), 1)).decode()

    @classmethod
    def unpack(cls, text: str) -> Column:
        """The column that `pack` made the text of. Raises ValueError on any other text."""
        try:
            raw = zlib.decompress(base64.b64decode(text, validate=True))
        except (ValueError, zlib.error) as error:
            raise ValueError(f"not a packed column: {error}") from None
        return cls(np.cumsum(np.frombuffer(raw, dtype="<i8")))


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Column):
        return value.pack()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot write {type(value)}")


def _dec_hook(type_: type, value: Any) -> Any:
    if type_ is object:  # any JSON value
        return value
    if type_ is Column:
        return Column.unpack(value)
    raise NotImplementedError(f"cannot read {type_}")


def to_json(value: Any) -> bytes:
    """Compact JSON; the same value always gives the same bytes."""
    return msgspec.json.encode(value, enc_hook=_enc_hook, order="deterministic")


def from_json(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Inverse of `to_json`. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(data, type=type_, dec_hook=_dec_hook)


def digest(value: Any) -> str:
    """SHA-256 of the JSON of a value, in hex."""
    return hashlib.sha256(to_json(value)).hexdigest()
