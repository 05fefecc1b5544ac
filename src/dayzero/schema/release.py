"""Release: what a model hub serves, read once.

Tensors are held by pattern: K3's 497,220 tensors are 60 groups with a few integer columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from .base import Column, Noun
from .model import ModelSpec

ITEM_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element, by the dtype names of the safetensors format; a file may use newer ones."""


class FileEntry(Noun, frozen=True, kw_only=True):
    """One file of a release."""

    name: str
    """Path inside the release, with forward slashes."""
    size: int
    """Bytes on disk, or as the hub states them."""
    origin: str
    """Where it came from: a local path, a URL, or `card`."""
    role: str
    """What it is for: weights, index, config, code, tokenizer or other."""
    sha256: str | None = None
    """SHA-256 of the content in hex, as computed here; None: not computed."""
    expected_sha256: str | None = None
    """SHA-256 that the hub or a manifest states; None: nobody stated one."""


class TensorGroup(Noun, frozen=True, kw_only=True):
    """All tensors whose names follow one pattern and that have the same shape and dtype."""

    pattern: str
    """Tensor name with `{L}` for the first number in it (the layer) and `{E}` for an expert's number."""
    shape: tuple[int, ...]
    """Elements along each axis, as stored (packed formats store fewer than the matrix has)."""
    dtype: str
    """safetensors dtype name, such as BF16 or F8_E4M3."""
    layer: Column
    """Value of `{L}` for each tensor; -1 where the pattern has none."""
    expert: Column
    """Value of `{E}` for each tensor; -1 where the pattern has none."""
    file: Column
    """Index into `TensorTable.files`; -1: not on disk (a card)."""
    start: Column
    """First byte of the data, counted from the start of the file."""
    item_bits: int | None = None
    """Bits of one element as the files show them, for a dtype that `ITEM_BITS` does not know; None: it does."""

    @property
    def count(self) -> int:
        """Number of tensors."""
        return len(self.layer)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of the tensors."""
        return (prod(self.shape) * (self.item_bits or ITEM_BITS[self.dtype]) + 7) // 8

    def name(self, row: int) -> str:
        """Name of one of the tensors."""
        layer, expert = int(self.layer.values[row]), int(self.expert.values[row])
        return self.pattern.replace("{L}", str(layer)).replace("{E}", str(expert))


class TensorTable(Noun, frozen=True, kw_only=True):
    """All tensors of a release, in columns."""

    files: tuple[str, ...]
    """Names of the files that hold tensors."""
    groups: tuple[TensorGroup, ...]
    """Sorted by pattern, then shape and dtype."""

    @property
    def count(self) -> int:
        """Number of tensors."""
        return sum(group.count for group in self.groups)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(group.count * group.tensor_bytes for group in self.groups)

    @property
    def ends(self) -> dict[str, int]:
        """For each file: one past the last byte that its header describes."""
        found = np.zeros(len(self.files) + 1, dtype=np.int64)  # the last one takes what is in no file, -1
        for group in self.groups:
            np.maximum.at(found, group.file.values, group.start.values + group.tensor_bytes)
        return dict(zip(self.files, found.tolist(), strict=False))

    def names(self) -> Iterator[str]:
        """All tensor names; half a million strings for the largest releases."""
        return (group.name(row) for group in self.groups for row in range(group.count))


class Release(Noun, frozen=True, kw_only=True):
    """A release as read: files, tensors and what they say."""

    name: str
    """Short name: folder name, hub id or the card's name."""
    origin: str
    """Where it was read: a folder, `hub:org/name@revision` or a card's path."""
    has_weights: bool
    """Whether the data of the tensors is there, not only their headers."""
    files: tuple[FileEntry, ...]
    """Every file, sorted by name."""
    tensors: TensorTable
    """Every tensor."""
    index: dict[str, str] | None
    """The index's weight map if it disagrees with the headers; None: there is none, or they agree."""
    missing_shards: tuple[str, ...]
    """Files that the index, or without one the numbers in the shards' names, tell of and that are not there."""
    config: dict[str, object]
    """config.json as it is."""
    model: ModelSpec
    """What config and headers say about the model."""
    root: str | None
    """Folder that holds the files; None: there is none (a card)."""
    cut_shards: dict[str, int] = {}
    """Files that end within their own header, so that their tensors are not known, and the bytes that each has at least
    when it is complete."""
    hub: str = ""
    """Where it is published: `org/name`, or `org/name@revision` when it was read there; empty: not known."""
    store: str = ""
    """URL of the folder from which the data of the tensors is read when it is needed; empty: none."""

    @property
    def is_incomplete(self) -> bool:
        """Whether there are tensors of which nothing is known: files are missing, or end within their header."""
        return bool(self.missing_shards or self.cut_shards)

    @property
    def short_files(self) -> dict[str, int]:
        """Files that end before the data that their headers describe does, or within the header, and the bytes that
        each has at least when it is complete; by name."""
        sizes = {file.name: file.size for file in self.files}
        least = {**self.tensors.ends, **self.cut_shards}
        return {file: end for file, end in sorted(least.items()) if sizes.get(file, end) < end}

    @property
    def unread(self) -> tuple[str, ...]:
        """Files of tensors beside those that were read, at the top of the folder; of headers alone none."""
        read = set(self.tensors.files)
        return tuple(file.name for file in self.files if read and file.name not in read
                     and file.name.endswith(".safetensors") and "/" not in file.name)
