"""Values of small tensors, read from their place in a file, with numpy alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dayzero.floats import FLOATS, Values, decode
from dayzero.schema import Release, TensorGroup


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
