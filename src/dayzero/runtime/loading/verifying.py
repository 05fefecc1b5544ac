"""SHA-256 of files while they are read: what goes into memory as it is, is hashed there. The rest of the file is read
for the digest alone, and so is, once more, what is turned or dequantised on its way.

A digest is of a whole file, so a file is verified by whoever reads all of it: where ranks read parts, each verifies
some of the files (`shared_out`), and says which. Needs torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dayzero.errors import ReleaseError
from dayzero.schema.manifest import MANIFEST, Manifest

from .files import Files
from .memory import scratch
from .reading import Direct, Task
from .sources import bytes_of
from .sums import Sums

_GAP = 4 << 20
"""Bytes of what lies between that are read at once."""
_AGAIN = "get the file again"


def stated(root: Path) -> dict[str, str]:
    """SHA-256 by file name, as the manifest in the folder states them; empty when it has none. Raises ReleaseError."""
    path = root / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest) if path.exists() else None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ReleaseError(f"{MANIFEST} is not a manifest: {error}", "make it again, or remove it") from None
    return {name: file.sha256 for name, file in manifest.files.items() if file.sha256} if manifest else {}


def shared_out(sizes: Mapping[str, int], rank: int, ranks: int) -> tuple[str, ...]:
    """The files that a rank verifies: the largest first, each to whom has the least so far. All ranks get the same."""
    load, mine = [0] * ranks, []
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        least = load.index(min(load))
        load[least] += sizes[name]
        if least == rank:
            mine.append(name)
    return tuple(mine)


@dataclass(frozen=True)
class Verified:
    """All of a file, with the tasks that want parts of it."""

    file: int
    wanted: Sequence[Task]
    """In order, of this file alone."""
    sha256: str
    length: int
    """Bytes of the file."""

    @property
    def place(self) -> tuple[int, int]:
        return self.file, 0

    def run(self, files: Files) -> None:
        """Raises ReleaseError when the digest is another one, also when the file is read again from the disk."""
        first, sums = self._once(files)
        if first == self.sha256:
            return
        files.forget(self.file)
        second, again = self._once(files)
        if second == self.sha256:
            files.repaired += 1
            return
        name = files.names[self.file]
        changed = sums.differs(again)
        where = "" if changed is None else (
            f": what follows byte {changed}, in {files.name_at(self.file, changed)}, reads differently each time")
        raise ReleaseError(f"{name} has SHA-256 {second}, not {self.sha256} (read twice){where}", _AGAIN)

    def _once(self, files: Files) -> tuple[str, Sums]:
        """(digest, checksums of blocks)"""
        digest, sums, at = hashlib.sha256(), Sums(), 0

        def take(start: int, data: memoryview) -> None:
            nonlocal at
            digest.update(data[at - start:])
            sums.add(data[at - start:])
            at = start + data.nbytes

        for task in self.wanted:
            if isinstance(task, Direct) and task.start >= at:
                self._gap(files, at, task.start, take)
                task.run(files)
                start = task.start
                for target in task.targets:
                    take(start, target)
                    start += target.nbytes
            else:
                task.run(files)
        self._gap(files, at, files.size(self.file), take)
        sums.end()
        if digest.hexdigest() == self.sha256:
            files.sums[self.file] = sums
        return digest.hexdigest(), sums

    def _gap(self, files: Files, first: int, last: int, take: Callable[[int, memoryview], None]) -> None:
        for start in range(first, last, _GAP):
            data = bytes_of(scratch(min(_GAP, last - start)))
            files.read(self.file, start, [data])
            take(start, data)
