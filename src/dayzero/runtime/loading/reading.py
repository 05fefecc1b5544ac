"""Reads pieces of sources into tensors, by several threads, in the order of the files.

What lies in a file as it will lie in memory is read into the tensor itself, neighbours in one request; the rest is read
in small parts, converted and placed. Needs torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from dayzero.runtime.timeline import OFF, Timeline

from .files import Files
from .pieces import Piece, broken
from .sources import Plain, bytes_of

REQUEST = 16 << 20
"""Bytes of one read at most."""
RUN = 64 << 10
"""Bytes that lie in one row in the file and in memory from which on they are read there at once."""
STAGED = 1 << 20
"""Bytes, at most, of what is read to be placed afterwards."""
DECODED = 1 << 19
"""Values, at most, that are dequantised at once."""


class Task(Protocol):
    """Something to read."""

    @property
    def place(self) -> tuple[int, int]:
        """(file, first byte)"""

    @property
    def length(self) -> int:
        """Bytes of the files, about."""

    def run(self, files: Files) -> None:
        """Read it. Raises ReleaseError."""


@dataclass(frozen=True)
class Direct:
    """Bytes that go into memory as they are."""

    file: int
    start: int
    targets: tuple[memoryview, ...]

    @property
    def place(self) -> tuple[int, int]:
        return self.file, self.start

    @property
    def length(self) -> int:
        """Bytes."""
        return sum(each.nbytes for each in self.targets)

    def run(self, files: Files) -> None:
        files.read(self.file, self.start, self.targets)


@dataclass(frozen=True)
class Placed:
    """A piece that is converted or turned on its way."""

    piece: Piece
    target: torch.Tensor

    @property
    def place(self) -> tuple[int, int]:
        file, start = self.piece.source.place
        return file, start + int(self.piece.start * self.piece.source.stored)

    @property
    def length(self) -> int:
        return int(prod(self.piece.size) * self.piece.source.stored)

    def run(self, files: Files) -> None:
        self.target.copy_(self.piece.source.values(files, self.piece))


@dataclass(frozen=True)
class Called:
    """Whatever else fills a tensor."""

    place: tuple[int, int]
    length: int
    function: Callable[[], None]

    def run(self, files: Files) -> None:
        del files
        self.function()


def tasks(pieces: Iterable[Piece], out: torch.Tensor) -> Iterator[Direct | Placed]:
    """What fills `out`, which lies row by row on the host, with pieces that cover it."""
    memory = bytes_of(out) if out.numel() else memoryview(b"")
    for piece in pieces:
        if isinstance(piece.source, Plain) and piece.source.dtype == out.dtype:
            run, outer = _run(piece, out.shape)
            if run * out.itemsize >= RUN or run == prod(piece.size):
                yield from _direct(piece, out, memory, run, outer)
                continue
            limit = STAGED // out.itemsize
        else:
            limit = DECODED
        for part in broken(piece, limit):
            box = tuple(slice(at, at + extent) for at, extent in zip(part.at, part.size, strict=True))
            yield Placed(part, out[box])


def _run(piece: Piece, shape: Sequence[int]) -> tuple[int, int]:
    """(values that lie one behind the other in both, axes outside of them)"""
    run, step = 1, 1
    for axis in range(len(shape) - 1, -1, -1):
        if piece.size[axis] > 1 and (piece.strides[axis] != run or step != run):
            return run, axis + 1
        run *= piece.size[axis]
        step *= shape[axis]
    return run, 0


def _direct(piece: Piece, out: torch.Tensor, memory: memoryview, run: int, outer: int) -> Iterator[Direct]:
    stored, size, steps = piece.source.tensor, out.itemsize, out.stride()
    first = sum(at * step for at, step in zip(piece.at, steps, strict=True))
    starts = [(piece.start, first)]
    for axis in range(outer):
        starts = [(start + index * piece.strides[axis], at + index * steps[axis]) for start, at in starts
                  for index in range(piece.size[axis])]
    for start, at in starts:
        for done in range(0, run * size, REQUEST):
            count = min(REQUEST, run * size - done)
            begin = at * size + done
            yield Direct(stored.file, stored.start + start * size + done, (memory[begin:begin + count],))


def ordered(todo: Iterable[Task]) -> list[Task]:
    """In the order of the files, neighbours in one request."""
    made: list[Task] = []
    open_to = (-1, -1)
    for task in sorted(todo, key=lambda each: each.place):
        last = made[-1] if made else None
        if (isinstance(task, Direct) and isinstance(last, Direct) and task.place == open_to
                and last.length + task.length <= REQUEST):
            task = made[-1] = Direct(last.file, last.start, last.targets + task.targets)
        else:
            made.append(task)
        open_to = (task.file, task.start + task.length) if isinstance(task, Direct) else (-1, -1)
    return made


def run(todo: Sequence[Task], files: Files, threads: int, timeline: Timeline = OFF) -> None:
    """Run all tasks. Raises what the first that fails raises; the others end with what they are doing."""
    left = iter(todo)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def work() -> None:
        while not failed:
            with lock:
                task = next(left, None)
            if task is None:
                return
            try:
                with timeline.span("load", files.names[task.place[0]], nbytes=task.length):
                    task.run(files)
            except BaseException as error:  # raised again in the thread that asked
                failed.append(error)

    workers = [threading.Thread(target=work, daemon=True, name=f"load-{number}")
               for number in range(min(threads, len(todo)) - 1)]
    for worker in workers:
        worker.start()
    work()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    for file in {task.place[0] for task in todo}:
        files.check_unchanged(file)
