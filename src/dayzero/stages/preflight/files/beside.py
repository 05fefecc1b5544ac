"""Files of weights that lie beside those that were read, and which loaders may take in their place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from dayzero.data.compare import words
from dayzero.schema import Finding, Release
from dayzero.schema.finding import Severity

_PREFIX, _LIMIT = 8, 100_000_000
"""Bytes of the length of a header, and most that a header may have."""
MANY = 8
"""Most tensors of one file that are named."""


def beside(release: Release) -> Iterator[Finding]:
    """Findings about other weights in the release's folder, errors first. A header that cannot be read has no names."""
    loader = words().loader
    indexed = any(file.role == "index" for file in release.files)
    known = set(release.tensors.names()) if release.unread else set()
    roots = set(map(_root, known))
    for file in release.unread:
        names = _tensor_names(release, file)
        shared, own = known & names, sorted(name for name in names - known if _root(name) in roots)
        if indexed and file == loader.single:
            yield _finding(file, "error", f"loaders take {file} before the index and its shards, and it is not what "
                                          "was looked at", shared)
        elif indexed and shared:
            yield _finding(file, "error", f"{file} holds {min(shared)}, and the index does not list the file", shared)
        elif indexed and own:
            more = f" and {len(own) - MANY} more" if len(own) > MANY else ""
            for name in own[:MANY]:
                yield Finding(
                    rule="file-unlisted", severity="error", subject=name,
                    message=f"{file} holds {name}{more}, and the index does not list the file",
                    hint="write the index again from the headers, or remove the file", facts={"file": file})
        else:
            yield _finding(file, "warning", f"{file} holds tensors, and nothing says that it is a part of the release",
                           shared)
    copies = [file.name for file in release.files if "/" not in file.name and file.name not in release.unread
              and file.role not in ("weights", "index") and any(fnmatchcase(file.name, each) for each in loader.copies)]
    if copies:
        more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
        yield _finding(copies[0], "warning", f"{copies[0]}{more}: another copy of the weights, which some loaders take",
                       set())
    for file in (each.name for each in release.files if each.name in loader.adapters):
        yield _finding(file, "warning", f"{file} makes loaders put an adapter on top of the weights", set())


def _root(name: str) -> str:
    """What the names of one model's tensors begin with: `model.layers`."""
    return ".".join(name.split(".")[:2])


def _finding(file: str, severity: Severity, message: str, shared: set[str]) -> Finding:
    return Finding(rule="file-unlisted", severity=severity, subject=file, message=message,
                   hint="remove it, or load from a folder without it", facts={"same_names": len(shared)})


def _tensor_names(release: Release, file: str) -> set[str]:
    """Names in the header of a file; none when it is not here or is no safetensors file."""
    try:
        with (Path(str(release.root)) / file).open("rb") as data:
            length = int.from_bytes(data.read(_PREFIX), "little")
            header = json.loads(data.read(length)) if length <= _LIMIT else None
    except (OSError, ValueError, RecursionError):
        return set()
    return {name for name in header if name != "__metadata__"} if isinstance(header, dict) else set()
