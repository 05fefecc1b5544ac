"""Blocks and states of sequences outside of the pool: in host memory or in a folder, with a digest that they must
have when they come back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dayzero.errors import StageError
from dayzero.runtime.timeline import Background, Work

HOST, DISK = "host", "disk"
Key = tuple[int, str, int]
"""(layer, part, number)."""


class CorruptPages(StageError):  # noqa: N818
    """What came back differs from what was kept."""


@dataclass
class Saved:
    """One sequence's cache from some token on: [tokens, elements] of each layer's part, and its states."""

    first: int
    tokens: int
    """Computed tokens: parts reach up to here."""
    parts: dict[Key, torch.Tensor]
    digest: str

    @property
    def nbytes(self) -> int:
        """All parts."""
        return sum(part.nbytes for part in self.parts.values())


def digest(parts: Mapping[Key, torch.Tensor]) -> str:
    """Of all parts' bytes, in the order of their keys."""
    found = hashlib.blake2b(digest_size=16)
    for key in sorted(parts):
        found.update(_bytes(parts[key]))
    return found.hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    array: np.ndarray[Any, Any] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.data


class Shelf:
    """Sequences that left the pool. Files are written by a thread of their own; `folder` is where they go."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._writer: Background | None = None
        self._held: dict[int, Saved] = {}
        self._files: dict[int, _File] = {}

    def put(self, sequence: int, saved: Saved, tier: str) -> None:
        """Keep it. Raises StageError for the disk where no folder was given."""
        if tier == HOST:
            self._held[sequence] = saved
            return
        if self._folder is None:
            raise StageError("there is no folder for blocks that leave the memory", "name one")
        self._writer = self._writer or Background("cache to disk")
        path = self._folder / f"sequence-{sequence}.cache"
        self._held[sequence] = Saved(saved.first, saved.tokens, {}, saved.digest)
        self._files[sequence] = _File(
            path, [(key, part.shape, part.dtype) for key, part in sorted(saved.parts.items())],
            self._writer.submit(_write, path, saved, category="offload", nbytes=saved.nbytes))

    def take(self, sequence: int) -> Saved:
        """What was put, once. Raises CorruptPages when it is not what went, OSError when it could not be written."""
        saved, file = self._held.pop(sequence), self._files.pop(sequence, None)
        if file is not None:
            with file.kept():
                saved.parts = _read(file, sequence)
        if digest(saved.parts) != saved.digest:
            raise CorruptPages(f"the saved cache of sequence {sequence} is not what was saved",
                               "its tokens are computed again; look at the disk")
        return saved

    def drop(self, sequence: int) -> None:
        """Not needed any more."""
        self._held.pop(sequence, None)
        if (file := self._files.pop(sequence, None)) is not None:
            with file.kept():
                file.written.exception()

    def close(self) -> None:
        """Let go of everything."""
        for sequence in list(self._held):
            self.drop(sequence)
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@dataclass
class _File:
    """Of one sequence."""

    path: Path
    layout: list[tuple[Key, torch.Size, torch.dtype]]
    written: Work

    @contextmanager
    def kept(self) -> Iterator[None]:
        """There until the end of this; gone afterwards, whatever happens."""
        try:
            yield
        finally:
            self.written.exception()  # nobody writes it any more
            self.path.unlink(missing_ok=True)


def _write(path: Path, saved: Saved) -> None:
    with path.open("wb") as file:
        for _, part in sorted(saved.parts.items()):
            file.write(_bytes(part))


def _read(file: _File, sequence: int) -> dict[Key, torch.Tensor]:
    file.written.result()
    data, parts, at = np.fromfile(file.path, np.uint8), {}, 0
    for key, shape, dtype in file.layout:
        size = shape.numel() * dtype.itemsize
        raw = data[at:at + size]
        if len(raw) < size:
            raise CorruptPages(f"the saved cache of sequence {sequence} is cut short",
                               "its tokens are computed again; look at the disk")
        parts[key] = torch.from_numpy(raw.copy()).view(dtype).view(shape)
        at += size
    return parts
