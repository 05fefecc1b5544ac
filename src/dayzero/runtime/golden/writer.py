"""Writes one rank's golden dump: part files as they fill up, so that memory is bounded and what is written stays.

What comes in are bytes; what made them is nobody's business here.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dayzero.errors import StoreError
from dayzero.schema import to_json
from dayzero.schema.golden import Entry, Pass, RankDump
from dayzero.schema.release import ITEM_BITS
from dayzero.schema.store import write_atomic
from dayzero.text import one_line

from .digests import digest
from .files import ENTRIES, PASSES, manifest_name, part_name

PART = 32 * 2**20
"""Bytes of values after which a part file is written."""
_ENTRIES_LIMIT = 20_000
"""Entries after which one is written."""
_FLUSH_S = 5.0
_ALIGN = 8


class _Kept(NamedTuple):
    entry: Entry
    data: memoryview


class Writer:
    """`head`: everything that is known before; the folder then says that the dump is not finished.

    Not to be used by several threads. Every method raises StoreError when the disk is full or the folder cannot be
    used; what was written before can still be read.
    """

    def __init__(self, folder: Path, head: RankDump, *, part_bytes: int = PART) -> None:
        self.folder, self.head, self.nbytes = folder, msgspec.structs.replace(head, finished=False, parts=()), 0
        """nbytes: of values that were given."""
        self._limit = part_bytes
        self._parts: list[str] = []
        self._passes: list[Pass] = []
        self._entries: list[Entry] = []
        self._kept: list[_Kept] = []
        self._held, self._flushed = 0, time.monotonic()
        if any(folder.glob(f"{manifest_name(head.rank)[:-5]}*")):
            raise StoreError(f"{folder} has a golden dump of rank {head.rank}", "choose another folder, or remove it")
        self._manifest()

    def begin(self, made: Pass) -> None:
        """A pass, before any entry of it."""
        self._passes.append(made)

    def add(self, entry: Entry, data: Any = None) -> Entry:
        """An entry. `data`: its kept values row by row in its dtype, as anything that gives its bytes; None: none are
        kept, or they are those of an earlier entry, whose key it has. The entry with its key and digest. The bytes must
        not change until the part is written."""
        if data is not None:
            given = memoryview(data)
            view = given.cast("B") if given.nbytes else memoryview(b"")
            key = f"{entry.pass_no}/{entry.order}/{entry.name}/{entry.what}/{entry.slot}"
            entry = msgspec.structs.replace(entry, key=key, digest=digest(view))
            self._kept.append(_Kept(entry, view))
            self._held += view.nbytes
            self.nbytes += view.nbytes
        self._entries.append(entry)
        if self._held >= self._limit or len(self._entries) >= _ENTRIES_LIMIT:
            self.flush()
        return entry

    def flush(self) -> None:
        """Write what has come in as a part file."""
        if not self._entries and not self._passes:
            return
        name = part_name(self.head.rank, len(self._parts))
        kept = sorted(self._kept, key=lambda each: -ITEM_BITS[each.entry.dtype])  # readers want them aligned
        header: dict[str, Any] = {"__metadata__": {ENTRIES: to_json(self._entries).decode(),
                                                   PASSES: to_json(self._passes).decode()}}
        end = 0
        for entry, data in kept:
            header[entry.key] = {"dtype": entry.dtype, "shape": entry.kept_shape,
                                 "data_offsets": [end, end + data.nbytes]}
            end += data.nbytes
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % _ALIGN)
        write_atomic(self.folder / name, [len(text).to_bytes(8, "little"), text, *(each.data for each in kept)],
                     sync=False)
        self._parts.append(name)
        self._entries, self._passes, self._kept, self._held = [], [], [], 0
        self._flushed = time.monotonic()

    def flush_now_and_then(self) -> None:
        """`flush`, if the last one is some seconds ago: what is finished is not to be lost."""
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def finish(self) -> None:
        """Write the rest, and say that everything is there."""
        self.flush()
        self._manifest(finished=True, parts=tuple(self._parts))

    def abandon(self, why: str) -> None:
        """Write the rest, and say why recording ended early; as far as that can still be written."""
        with contextlib.suppress(StoreError):
            self.flush()
        with contextlib.suppress(StoreError):
            self._manifest(failure=one_line(why))

    def _manifest(self, **changes: Any) -> None:
        head = msgspec.structs.replace(self.head, **changes)
        write_atomic(self.folder / manifest_name(head.rank), to_json(head) + b"\n")
