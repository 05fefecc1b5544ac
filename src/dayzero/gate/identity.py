"""What a run depends on, and what of that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from dayzero.backends import host
from dayzero.progress import SILENT, Progress
from dayzero.runtime.versions import versions
from dayzero.schema import Release
from dayzero.schema.gate import Changed, Identity, Part

PARTS: tuple[Part, ...] = get_args(Part)


def identity(release: Release, progress: Progress = SILENT) -> Identity:
    """Of a release in a folder. Digests of files that have not changed are remembered."""
    from dayzero.stages.read import file_digests

    found = file_digests(release, progress)
    roles = {file.name: file.role for file in release.files}
    return Identity(
        weights={name: digest for name, digest in found.items() if roles.get(name) == "weights"},
        files={name: digest for name, digest in found.items() if roles.get(name) != "weights"},
        libraries=versions(), machine={"processor": " ".join(host.identity()).strip()})


def changes(before: Identity, after: Identity) -> tuple[Changed, ...]:
    """What differs, weights first."""
    return tuple(_changes(before, after))


def _changes(before: Identity, after: Identity) -> Iterator[Changed]:
    for what in PARTS:
        old: dict[str, str] = getattr(before, what)
        new: dict[str, str] = getattr(after, what)
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield Changed(what=what, name=name, before=old.get(name, ""), after=new.get(name, ""))
