"""Headers of safetensors files: names, shapes, dtypes and places of tensors, without reading any data.

A file is 8 bytes (length of the header, little-endian), the header (JSON) and the data, which the tensors must cover
without gap or overlap. A file that is merely cut short after its header is read: what is missing is preflight's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from dayzero.errors import ReleaseError, did_you_mean
from dayzero.schema.release import ITEM_BITS

from .names import Ints, Kind, Rows, refuse_many, split_all

PREFIX = 8
"""Bytes in front of the header: its length."""
LIMIT = 100_000_000
"""Longest header that the format allows, in bytes."""
WIDEST = 128
"""Most bits that one element may have: a complex number of two doubles."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Entry(msgspec.Struct, gc=False):
    """What a header says of one tensor. All optional, so that `__metadata__` decodes as one and can be dropped."""

    dtype: str | None = None
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)] | None = None
    data_offsets: tuple[Size, Size] | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """One file's header."""

    name: str
    """File, for messages."""
    size: int
    """Bytes of the file as it is."""
    data_start: int
    """First byte of the data."""
    entries: dict[str, Entry]
    """What it says, by tensor name."""

    @property
    def data_end(self) -> int:
        """Bytes that the file has when it is complete."""
        ends = (entry.data_offsets[1] for entry in self.entries.values() if entry.data_offsets)
        return self.data_start + max(ends, default=0)


class CutShortError(ReleaseError):
    """A file ends within its header."""

    def __init__(self, message: str, hint: str, least: int) -> None:
        super().__init__(message, hint)
        self.least = least
        """Bytes that it has at least when it is complete."""


_ENTRIES = msgspec.json.Decoder(dict[str, Entry])
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(Entry)


_AGAIN = "the file is damaged or not safetensors; get it again"


def _broken(name: str, what: str) -> ReleaseError:
    return ReleaseError(f"{name}: {what}"[:400], _AGAIN)


def _cut(name: str, what: str, least: int) -> CutShortError:
    return CutShortError(f"{name}: {what}"[:400], _AGAIN, least)


def read_header(path: Path, name: str) -> Header:
    """The header of the file at `path`. Raises ReleaseError when the file cannot be read or the header is not one."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = header_length(file.read(PREFIX), size, name)
            text = file.read(length)
    except OSError as error:
        raise ReleaseError(f"cannot read {name}: {error.strerror}", "check its permissions and the disk") from None
    return Header(name=name, size=size, data_start=PREFIX + length, entries=decode(text, name))


def header_length(prefix: bytes, size: int, name: str) -> int:
    """Length of the header, by a file's first 8 bytes. Raises CutShortError if a file of `size` bytes cannot
    hold it, ReleaseError if none can."""
    if len(prefix) < PREFIX:
        raise _cut(name, f"only {len(prefix)} bytes long, shorter than the length of a header", PREFIX)
    length = int.from_bytes(prefix, "little")
    if length > LIMIT:
        raise _broken(name, f"states a header of {length} bytes; the format allows {LIMIT}")
    if length > size - PREFIX:
        raise _cut(name, f"states a header of {length} bytes, but the file ends after {size} bytes", PREFIX + length)
    return length


def decode(text: bytes, name: str) -> dict[str, Entry]:
    """The tensors of a header's JSON, by name. Raises ReleaseError."""
    if not text.startswith(b"{"):
        raise _broken(name, "the header is not a JSON object")
    try:
        entries = _decode_entries(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _broken(name, f"the header does not describe tensors: {error}") from None
    entries.pop("__metadata__", None)
    return entries


def _decode_entries(text: bytes) -> dict[str, Entry]:
    try:
        return _ENTRIES.decode(text)
    except msgspec.ValidationError:
        # Free text under __metadata__ may look like anything; only the rest has to describe tensors.
        raw = _RAW.decode(text)
        raw.pop("__metadata__", None)
    entries = {}
    for tensor, value in raw.items():
        try:
            entries[tensor] = _ENTRY.decode(value)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"tensor {tensor!r}: {error}") from None
    return entries


def rows(header: Header) -> Rows:
    """Columns of one file's tensors, in the order of their data. Raises ReleaseError.

    Checked: offsets that match shape and dtype (one that is not known has as many bits as they give each element), data
    covered from its first byte without gap or overlap, and a file that does not go on after the last tensor (one that
    ends before is preflight's to report).
    """
    kinds: dict[Kind, int] = {}
    count = len(header.entries)
    kind, begin, end = ([0] * count for _ in range(3))
    patterns, layer, expert = split_all(list(header.entries))
    for row, (tensor, entry) in enumerate(header.entries.items()):
        if entry.dtype is None or entry.shape is None or entry.data_offsets is None:
            raise _broken(header.name, f"tensor {tensor!r} lacks dtype, shape or data_offsets")
        if "{" in tensor and ("{L}" in tensor or "{E}" in tensor):
            raise _broken(header.name, f"tensor {tensor!r} has braces where a number is expected")
        kind[row] = kinds.setdefault((patterns[row], entry.dtype, entry.shape), len(kinds))
        begin[row], end[row] = entry.data_offsets
    refuse_many(len(kinds))
    columns = np.array([kind, layer, expert, begin, end], dtype=np.int64)
    order = np.lexsort((columns[4], columns[3]))
    columns = columns[:, order]
    firsts = np.unique(columns[0], return_index=True)[1]
    new = _new_dtypes(header, columns, order, tuple(kinds), firsts)
    _check_sizes(header, columns, order, tuple(kinds), firsts, ITEM_BITS | new)
    _check_cover(header, columns[3], columns[4], order)
    return Rows(kinds=tuple(kinds), kind=columns[0], layer=columns[1], expert=columns[2],
                start=columns[3] + header.data_start, new_dtypes=new)  # fmt: skip


def _tensor(header: Header, order: Ints, row: int) -> str:
    return repr(list(header.entries)[order[row]])


def _new_dtypes(header: Header, columns: Ints, order: Ints, kinds: tuple[Kind, ...], firsts: Ints) -> dict[str, int]:
    """Bits of one element of each dtype that is not known: what the data of its largest tensor gives each element.
    `firsts`: the first row of each kind."""
    largest: dict[str, tuple[int, int]] = {}
    for index, (_, dtype, shape) in enumerate(kinds):
        if dtype not in ITEM_BITS:
            largest[dtype] = max(largest.get(dtype, (-1, 0)), (prod(shape), index))
    bits = {}
    for dtype, (elements, index) in largest.items():
        row = int(firsts[index])
        data = int(columns[4, row] - columns[3, row]) * 8
        if not elements or data % elements or not 1 <= data // elements <= WIDEST:
            raise _broken(header.name, f"tensor {_tensor(header, order, row)} has the unknown dtype {dtype!r}, and "
                                       f"{data // 8} bytes of {elements} elements do not tell its size "
                                       f"({did_you_mean(dtype, ITEM_BITS)}known: {', '.join(ITEM_BITS)})")  # fmt: skip
        bits[dtype] = data // elements
    return bits


def _check_sizes(header: Header, columns: Ints, order: Ints, kinds: tuple[Kind, ...], firsts: Ints,
                 bits: dict[str, int]) -> None:
    needs = np.zeros(len(kinds), dtype=np.int64)
    for index, (_, dtype, shape) in enumerate(kinds):
        need = (prod(shape) * bits[dtype] + 7) // 8
        if need > 2**62:
            tensor = _tensor(header, order, int(firsts[index]))
            raise _broken(header.name, f"tensor {tensor} has an impossible shape {list(shape)}")
        needs[index] = need
    wrong = columns[4] - columns[3] != needs[columns[0]]
    if wrong.any():
        row = int(np.argmax(wrong))
        _, dtype, shape = kinds[columns[0, row]]
        offsets, need = columns[3:, row].tolist(), needs[columns[0, row]]
        raise _broken(header.name, f"tensor {_tensor(header, order, row)}: data_offsets {offsets} do not hold "
                                   f"{list(shape)} of {dtype} ({need} bytes)")  # fmt: skip


def _check_cover(header: Header, begin: Ints, end: Ints, order: Ints) -> None:
    expected = np.concatenate([[0], end[:-1]]) if len(begin) else begin
    wrong = begin != expected
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "overlaps the tensor before it" if begin[row] < expected[row] else "leaves a gap before it"
        raise _broken(header.name, f"tensor {_tensor(header, order, row)} {what}: its data starts at byte {begin[row]} "
                                   f"of the data, the one before ends at {expected[row]}")  # fmt: skip
    surplus = header.size - header.data_end
    if surplus > 0:
        raise _broken(header.name, f"goes on for {surplus} bytes after its last tensor")
