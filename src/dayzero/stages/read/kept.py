"""The tensors of large releases that were read before, by the state of the files that they are in.

A file that changes has another state; the table is then read again. Only where index and headers agree it is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dayzero import __version__
from dayzero.errors import StoreError
from dayzero.schema import TensorTable, from_json, to_json
from dayzero.schema.base import Noun
from dayzero.schema.store import write_atomic

from .digests import cache_folder, file_state

FORMAT = "1"
"""What is kept means something else when this changes."""
LEAST = 10_000
"""Tensors of a release that is worth keeping: smaller ones are read as fast."""
MOST = 50
"""Releases that are kept; the oldest go."""


class Kept(Noun, frozen=True, kw_only=True):
    """What reading the headers of a release gave."""

    tensors: TensorTable
    """Its tensors."""
    whole: bool
    """The data of all of them is there."""


def place(root: Path, files: Iterable[str], cache: Path | None) -> Path:
    """Where the tensors of that release are kept, in the state that its files are in. Raises ReleaseError."""
    states = [file_state(root / file) for file in sorted(files)
              if file.endswith((".safetensors", ".safetensors.index.json"))]
    name = hashlib.sha256("\n".join([__version__, FORMAT, *states]).encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder(cache) / "tensors" / f"{name}.json"


def load(path: Path) -> Kept | None:
    """What is kept there; None when there is nothing, or it is damaged."""
    try:
        return from_json(path.read_bytes(), Kept)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def keep(path: Path, kept: Kept) -> None:
    """Keep it, if it is worth that. Without it the next look takes longer, nothing else: no error stops this one."""
    if kept.tensors.count < LEAST:
        return
    with contextlib.suppress(StoreError, OSError):
        write_atomic(path, to_json(kept))
        others = sorted(path.parent.glob("*.json"), key=lambda other: -other.stat().st_mtime_ns)
        for old in others[MOST:]:
            old.unlink(missing_ok=True)
