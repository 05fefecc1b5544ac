"""Graphs that were traced before, by everything that they depend on: the release's files, the sizes, the options, the
libraries and this program. Without torch: what is kept is shown in a fraction of a second."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from dayzero import __version__
from dayzero.errors import StoreError
from dayzero.schema import OpGraph, from_json, to_json
from dayzero.schema.store import write_atomic

MOST = 50
"""Graphs that are kept; the oldest go."""
LIBRARIES = ("torch", "transformers")


def place(cache: Path, files: Iterable[Path], options: Mapping[str, Any]) -> Path:
    """Where the graph of the release that consists of these files is kept, below the folder `cache`."""
    parts: list[Any] = [__version__, platform.python_version(), _installed(), _state(_sources()),
                        _state(sorted(files)), sorted(options.items())]
    return cache / "traces" / f"{hashlib.sha256(to_json(parts)).hexdigest()}.json"


def load(path: Path) -> OpGraph | None:
    """What is kept there; None when there is nothing, or it is damaged."""
    try:
        return from_json(path.read_bytes(), OpGraph)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def keep(path: Path, graph: OpGraph) -> None:
    """Keep it. Without it the next look takes longer, nothing else: no error stops this one."""
    with contextlib.suppress(StoreError, OSError):
        write_atomic(path, to_json(graph))
        others = sorted(path.parent.glob("*.json"), key=lambda other: -other.stat().st_mtime_ns)
        for old in others[MOST:]:
            old.unlink(missing_ok=True)


def _installed() -> list[Any]:
    """Versions of the libraries, and the state of the folders that packages are installed in: the release's own code
    may import any of them."""
    versions = []
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            versions.append(library)
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return [versions, _state(map(Path, sorted(folders)))]


def _sources() -> list[Path]:
    """This program's files."""
    root = Path(__file__).parents[2]
    return sorted(Path(folder, name) for folder, _, names in os.walk(root) for name in names
                  if not name.endswith(".pyc"))


def _state(files: Iterable[Path]) -> list[list[Any]]:
    """Name, size and time of change of each file; what cannot be looked at has a name only."""
    states: list[list[Any]] = []
    for file in files:
        name = os.fsencode(file).decode(errors="backslashreplace")
        try:
            status = os.stat(file)
            states.append([name, status.st_size, status.st_mtime_ns])
        except OSError:
            states.append([name])
    return states
