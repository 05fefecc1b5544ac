"""The files of a golden dump: manifests of ranks, and part files with the entries that they hold."""

from __future__ import annotations

import os
import re
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from dayzero.errors import StoreError
from dayzero.schema import from_json
from dayzero.schema.golden import GOLDEN_FORMAT, Entry, Mode, Pass, RankDump
from dayzero.schema.release import ITEM_BITS
from dayzero.schema.store import read_regular
from dayzero.text import one_line

from .values import AGAIN

ENTRIES, PASSES = "dayzero.entries", "dayzero.passes"
"""Keys of a part file's metadata."""
_MANIFEST = re.compile(r"rank-(\d{5,9})\.json")
_PART = re.compile(r"rank-(\d{5,9})-(\d{5,9})\.safetensors")
_PREFIX = 8
_HEADER_LIMIT, _MANIFEST_LIMIT = 1 << 30, 1 << 30
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Place(NamedTuple):
    """Where the values of an entry lie."""

    path: Path
    start: int
    """First byte, from the start of the file."""
    nbytes: int
    """Bytes."""
    dtype: str
    shape: tuple[int, ...]


class Part(NamedTuple):
    """One part file."""

    entries: tuple[Entry, ...]
    passes: tuple[Pass, ...]
    places: dict[str, Place]
    """By key; those that the file holds."""


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Metadata(msgspec.Struct):
    entries: str = msgspec.field(name=ENTRIES)
    passes: str = msgspec.field(name=PASSES)


def manifest_name(rank: int) -> str:
    """Name of a rank's manifest."""
    return f"rank-{rank:05}.json"


def part_name(rank: int, number: int) -> str:
    """Name of one of its part files."""
    return f"rank-{rank:05}-{number:05}.safetensors"


def manifests(folder: Path) -> list[Path]:
    """Manifests of all ranks, in order. Raises StoreError for a folder that cannot be listed or has none."""
    try:
        found = sorted((int(match[1]), path) for path in folder.iterdir() if (match := _MANIFEST.fullmatch(path.name)))
    except OSError as error:
        raise StoreError(f"cannot read the dump {folder}: {error.strerror}",
                         "give the folder of a golden dump") from None
    if not found:
        raise StoreError(f"there is no golden dump in {folder}", "make one with dayzero check record")
    return [path for _, path in found]


def read_manifest(path: Path) -> RankDump:
    """Raises StoreError for one that is damaged, of another format or another rank's."""
    try:
        dump = from_json(read_regular(path, _MANIFEST_LIMIT), RankDump)
    except OSError as error:
        broken(path, str(error.strerror))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        broken(path, str(error))
    if dump.format != GOLDEN_FORMAT:
        raise StoreError(f"{path} is a golden dump of format {dump.format}; this version reads {GOLDEN_FORMAT}",
                         "record it again with this version, or compare with the one that wrote it")
    if path.name != manifest_name(dump.rank):
        broken(path, f"it says that it is of rank {dump.rank}")
    return dump


def part_files(folder: Path, dump: RankDump) -> list[Path]:
    """Part files of a rank, in order: those that its manifest names, or of an unfinished one all that are there.

    Raises StoreError for names of other files, and for files that are missing.
    """
    found = sorted((int(match[2]), path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))
                   and int(match[1]) == dump.rank and path.is_file())
    if not dump.finished:
        return [path for _, path in found]
    for name in dump.parts:
        match = _PART.fullmatch(name)
        if match is None or int(match[1]) != dump.rank:
            broken(folder / manifest_name(dump.rank), f"it names the file {name!r}, which is none of its own")
    if len(set(dump.parts)) < len(dump.parts):
        broken(folder / manifest_name(dump.rank), "it names a file twice")
    paths = [folder / name for name in dump.parts]
    for path in paths:
        if path.is_symlink() or not path.is_file():
            broken(path, "it is a link" if path.is_symlink() else "the manifest names it, and it is not there")
    if more := [path for _, path in found if path.name not in dump.parts]:
        broken(folder / manifest_name(dump.rank), f"it does not name {more[0].name}, which is there")
    return paths


def read_part(path: Path) -> Part:
    """Header of a part file. Raises StoreError when it is cut short, damaged, or its entries are not what it holds."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_PREFIX), "little")
            if size < _PREFIX or not 0 < length <= min(_HEADER_LIMIT, size - _PREFIX):
                broken(path, "it has no header of safetensors, or ends within it")
            header = _RAW.decode(file.read(length))
        told = msgspec.json.decode(header.pop("__metadata__", msgspec.Raw(b"null")), type=_Metadata)
        entries = from_json(told.entries.encode(), tuple[Entry, ...])
        passes = from_json(told.passes.encode(), tuple[Pass, ...])
        tensors = {key: msgspec.json.decode(raw, type=_Tensor) for key, raw in header.items()}
    except OSError as error:
        broken(path, str(error.strerror))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        broken(path, str(error))
    for entry in entries:
        _check(path, entry)
    places = {key: _place(path, key, tensor, _PREFIX + length, size) for key, tensor in tensors.items()}
    if lost := places.keys() - {entry.key for entry in entries}:
        broken(path, f"no entry says what {min(lost)} is")
    return Part(entries, passes, places)


def _place(path: Path, key: str, tensor: _Tensor, data: int, size: int) -> Place:
    begin, end = tensor.data_offsets
    if tensor.dtype not in ITEM_BITS or any(extent < 0 for extent in tensor.shape):
        broken(path, f"{key} is {list(tensor.shape)} of {tensor.dtype}")
    if begin < 0 or end - begin != (prod(tensor.shape) * ITEM_BITS[tensor.dtype] + 7) // 8:
        broken(path, f"{key} has {end - begin} bytes for {list(tensor.shape)} of {tensor.dtype}")
    if data + end > size:
        broken(path, f"it ends after {size} bytes, within {key}")
    return Place(path, data + begin, end - begin, tensor.dtype, tensor.shape)


def place_of(path: Path, entry: Entry, places: dict[str, Place]) -> Place | None:
    """Where the values of an entry are: in its own part file, or, where they are those of an earlier entry, in an
    earlier one. None: none were kept. Raises StoreError when they are nowhere, or of another shape."""
    if not entry.key:
        return None
    place = places.get(entry.key)
    if place is None:
        broken(path, f"{entry.key} is not in it")
    if place.dtype != entry.dtype or place.shape != entry.kept_shape:
        broken(path, f"{entry.key} is {place.dtype} {list(place.shape)} and should be {entry.dtype} "
                     f"{list(entry.kept_shape)}")
    return place


def _check(path: Path, entry: Entry) -> None:
    """Raises StoreError for an entry that contradicts itself."""
    shape = entry.shape
    if any(extent < 0 for extent in shape) or len(entry.axes) != len(shape) or entry.dtype not in ITEM_BITS:
        broken(path, f"{entry.name or 'the model'}: {list(shape)} of {entry.dtype} with axes {list(entry.axes)}")
    for held in entry.held:
        if not 0 <= held.axis < len(shape) or sum(end - first for first, end in held.ranges) != shape[held.axis] or any(
                not 0 <= first <= end <= held.size for first, end in held.ranges):
            broken(path, f"{entry.name or 'the model'}: what it holds of axis {held.axis} is not its own")
    if entry.sample is not None:
        for axis, kept in ((0, entry.sample.rows), (-1, entry.sample.columns)):
            if kept is not None and (not shape or not _rising(kept.values, shape[axis])):
                broken(path, f"{entry.name or 'the model'}: the sample is not of its own values")


def check_entry(path: Path, entry: Entry, mode: Mode, made: Pass) -> None:
    """Raises StoreError for an entry that its rank's manifest or its pass contradicts."""
    name = entry.name or "the model"
    odd = mode == "statistics" and entry.key and entry.what != "parameter"  # rows of weights are kept in every mode
    if odd or (mode != "sampled" and entry.sample is not None):
        broken(path, f"{name}: values were kept otherwise than in a dump of mode {mode}")
    if entry.statistics.count != prod(entry.shape):
        broken(path, f"{name}: its statistics are of {entry.statistics.count} values, it has {prod(entry.shape)}")
    rows = sum(each.count for each in entry.rows or made.rows)
    whole = next((held.size for held in entry.held if held.axis == 0), next(iter(entry.shape), 0))
    if entry.axes[:1] == ("token",) and rows and rows != whole:
        broken(path, f"{name}: it has {whole} rows of tokens, and the pass {rows}")


def _rising(values: Any, extent: int) -> bool:
    return not len(values) or bool(values[0] >= 0 and values[-1] < extent and (values[1:] > values[:-1]).all())


def broken(path: Path, why: str) -> NoReturn:
    """Raises StoreError."""
    raise StoreError(f"{path} is damaged: {one_line(why, 300)}", AGAIN) from None
