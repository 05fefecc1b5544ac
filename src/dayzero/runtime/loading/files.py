"""The weight files of a release: where each tensor lies, and reads of byte ranges straight into memory that is given.

A read that the system fails is tried again and then named; a file that is shorter than it says, or that changes while
it is in use, is told as that. Without torch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dayzero.errors import ReleaseError
from dayzero.runtime.store import Store, url_of
from dayzero.schema.release import ITEM_BITS

from .sums import Sums

INDEX = "model.safetensors.index.json"
_PREFIX = 8
_LIMIT = 100_000_000
_TRIES = 4
_PAUSE = 0.05
"""Seconds before the second try; each next one waits twice as long."""
_AGAIN = "get the file again and compare its size and digest"


class Stored(NamedTuple):
    """One tensor of a file."""

    name: str
    file: int
    """Index of its file."""
    dtype: str
    """By safetensors."""
    shape: tuple[int, ...]
    start: int
    """First byte, from the start of the file."""
    length: int
    """Bytes."""


class _Entry(msgspec.Struct, gc=False):
    """What a header says of a tensor. All optional, so that `__metadata__` decodes as one and can be dropped."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    data_offsets: tuple[int, int] | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_HEADER = msgspec.json.Decoder(dict[str, _Entry])
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(_Entry)


Reader = Callable[[Path, int, memoryview], None]
"""Fills the memory from byte `start` of a file, all of it. Raises OSError when it cannot."""


class Files:
    """`reader`: what the tensors' bytes are read through; None: the store that the folder describes, or the
    system's files.

    Raises ReleaseError for a folder without weight files, and for headers that are none.
    """

    def __init__(self, root: Path, reader: Reader | None = None, *, partial: bool = False) -> None:
        self.root, self._reader = root, reader or _from_store(root)
        self.names = weight_files(root, partial=partial)
        self.tensors: dict[str, Stored] = {}
        """By name."""
        self.sums: dict[int, Sums] = {}
        """Of the blocks of files that were verified, if later reads are to be compared with them."""
        self.repaired = 0
        """Reads that were right the second time only."""
        self._states: list[tuple[int, int, int]] = []
        self._open: dict[int, int] = {}
        self._starts: dict[int, list[tuple[int, str]]] = {}
        self._lock = threading.Lock()
        for number, name in enumerate(self.names):
            self._add(number, name)

    def _add(self, number: int, name: str) -> None:
        try:
            with (self.root / name).open("rb") as file:
                state = os.fstat(file.fileno())
                length = int.from_bytes(file.read(_PREFIX), "little")
                if not 0 < length <= min(_LIMIT, state.st_size - _PREFIX):
                    raise ReleaseError(f"{name} has no header of safetensors, or ends within it", _AGAIN)
                entries = _entries(file.read(length))
        except OSError as error:
            raise ReleaseError(f"cannot read {name}: {error.strerror}", "check its permissions and the disk") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ReleaseError(f"the header of {name} does not describe tensors: {error}", _AGAIN) from None
        self._states.append(_state(state))
        for tensor, entry in entries.items():
            if entry.dtype is None or entry.shape is None or entry.data_offsets is None:
                raise ReleaseError(f"{name}: {tensor} lacks dtype, shape or data_offsets", _AGAIN)
            begin, end = entry.data_offsets
            need = (prod(entry.shape) * ITEM_BITS.get(entry.dtype, 0) + 7) // 8
            if need != end - begin or begin < 0:
                raise ReleaseError(f"{name}: {tensor} has {end - begin} bytes for {list(entry.shape)} of {entry.dtype}",
                                   _AGAIN)
            self.tensors[tensor] = Stored(tensor, number, entry.dtype, entry.shape, _PREFIX + length + begin, need)

    def name_at(self, file: int, byte: int) -> str:
        """The tensor that a byte belongs to; `the header` in front of all."""
        starts = self._starts.get(file)
        if starts is None:
            starts = self._starts[file] = sorted((tensor.start, tensor.name) for tensor in self.tensors.values()
                                                 if tensor.file == file and tensor.length)
        index = bisect(starts, byte, key=lambda each: each[0])
        return starts[index - 1][1] if index else "the header"

    def size(self, file: int) -> int:
        """Bytes of a file when it was opened first."""
        return self._states[file][0]

    def read(self, file: int, start: int, targets: Sequence[memoryview]) -> None:
        """Fill the targets, one behind the other, from byte `start` of a file. In a file of `sums` blocks are compared,
        and what is not as it was is read once more, from the disk.

        Raises ReleaseError, which names file, tensor and byte, when the system cannot read it, also not later, when the
        file ends before, or when what is read is not what was verified.
        """
        self._fill(file, start, targets)
        if file in self.sums and self._wrong(file, start, targets) is not None:
            self.forget(file)
            self._fill(file, start, targets)
            at = self._wrong(file, start, targets)
            if at is not None:
                raise ReleaseError(f"{self.names[file]} is not what was verified: what follows byte {at}, in "
                                   f"{self.name_at(file, max(at, start))}, has changed (read twice)", _AGAIN)
            self.repaired += 1

    def _wrong(self, file: int, start: int, targets: Sequence[memoryview]) -> int | None:
        """First byte of a block that is not as it was when the file was verified."""
        parts = []
        for first, end in self.sums[file].edges(start, sum(each.nbytes for each in targets)):
            parts.append(memoryview(bytearray(end - first)))
            if end > first:
                self._fill(file, first, parts[-1:])
        return self.sums[file].wrong(start - parts[0].nbytes, [parts[0], *targets, parts[1]])

    def _fill(self, file: int, start: int, targets: Sequence[memoryview]) -> None:
        left, at = [each for each in targets if each.nbytes], start
        while left:
            count = self._some(file, at, left)
            if not count:
                self.check_unchanged(file)
                raise ReleaseError(f"{self.names[file]} ends at byte {at}, within {self.name_at(file, at)}", _AGAIN)
            at += count
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if count:
                left[0] = left[0][count:]

    def _some(self, file: int, at: int, targets: Sequence[memoryview]) -> int:
        for attempt in range(_TRIES):
            try:
                if self._reader is not None:
                    self._reader(self.root / self.names[file], at, targets[0])
                    return targets[0].nbytes
                return os.preadv(self._descriptor(file), targets[:_VECTORS], at)
            except OSError as error:
                failure = error
                time.sleep(_PAUSE * 2**attempt)
        raise ReleaseError(f"cannot read {self.name_at(file, at)} at byte {at} of {self.names[file]}: "
                           f"{failure.strerror or failure} ({_TRIES} tries)",
                           "check the disk, or get the file again") from None

    def _descriptor(self, file: int) -> int:
        with self._lock:
            if file not in self._open:
                opened = os.open(self.root / self.names[file], os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                self._open[file] = opened
                self._same(file, os.fstat(opened))
            return self._open[file]

    def forget(self, file: int) -> None:
        """Have the system read a file from the disk again, where it can be told so."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor(file), 0, 0, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self, file: int) -> None:
        """Raises ReleaseError when the file is not what it was when its header was read."""
        self._same(file, os.fstat(self._descriptor(file)))
        with contextlib.suppress(FileNotFoundError):  # what is open can be read to its end
            self._same(file, (self.root / self.names[file]).stat())

    def _same(self, file: int, state: os.stat_result) -> None:
        if _state(state) != self._states[file]:
            raise ReleaseError(f"{self.names[file]} was changed while it was read",
                               "wait until it is written and start again")

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()


def _from_store(root: Path) -> Reader | None:
    url = url_of(root)
    return Store(url).read if url else None


_VECTORS = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16


def _state(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_size, state.st_mtime_ns, state.st_ino


def _entries(text: bytes) -> dict[str, _Entry]:
    """The tensors of a header. Raises msgspec.DecodeError."""
    try:
        entries = _HEADER.decode(text)
    except msgspec.ValidationError:  # free text under __metadata__ may look like anything
        parts = _PARTS.decode(text)
        parts.pop("__metadata__", None)
        return {tensor: _ENTRY.decode(value) for tensor, value in parts.items()}
    entries.pop("__metadata__", None)
    return entries


def weight_files(root: Path, *, partial: bool = False) -> tuple[str, ...]:
    """Names of the files with weights: those of the index, where there is one, and with `partial` that are there.
    Raises ReleaseError."""
    try:
        index = msgspec.json.decode((root / INDEX).read_bytes(), type=_Index) if (root / INDEX).exists() else None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ReleaseError(f"{INDEX} is not an index: {error}", _AGAIN) from None
    names = set(index.weight_map.values()) if index else {path.name for path in root.glob("*.safetensors")}
    if not names:
        raise ReleaseError(f"{root.name} has no weights in safetensors files", "give a folder that has them")
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ReleaseError(f"{INDEX} names the file {name!r} outside of the release", _AGAIN)
        if not partial and not (root / name).exists():
            raise ReleaseError(f"{name}, which the index names, is missing",
                               "get the file; the layers that are here can be run with --stream --partial")
    there = sorted(name for name in names if (root / name).exists())
    if not there:
        raise ReleaseError(f"{root.name} has none of its {len(names)} files of weights", "get some of them")
    return tuple(there)
