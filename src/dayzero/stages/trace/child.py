"""Traces and ledgers of a release's own code: the same functions, in a confined process (see runtime/isolation.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from dayzero.errors import ReleaseError
from dayzero.progress import SILENT, Progress
from dayzero.runtime import own_code
from dayzero.runtime.isolation import Confinement, Limits, isolated
from dayzero.schema import Noun, OpGraph, Release
from dayzero.schema.consumption import Consumption
from dayzero.schema.coverage import Coverage

T = TypeVar("T")


class TraceRequest(Noun, frozen=True, kw_only=True):
    """What to trace."""

    release: Release
    """As it was read."""
    batch: int
    """Sequences."""
    tokens: int
    """New tokens of each in prefill."""
    context: int
    """Tokens of each in the cache of the decode step."""
    towers: bool = False
    """Whether towers run as well."""
    own: bool = True
    """Whether the release's own code is to run, where it brings any; False: the library's class only."""


class Ledgers(Noun, frozen=True, kw_only=True):
    """The two ledgers."""

    consumption: Consumption
    """Which keys are read."""
    coverage: Coverage | None
    """Where the tensors go; None: there are none."""


def brings_code(release: Release) -> bool:
    """Whether there is anything that only this way can run. Raises ReleaseError where another repository's code is
    named and files with its names are here: they need not be that code."""
    if own_code.mistakable(release):
        stated = own_code.foreign(release)
        raise ReleaseError(
            f"the auto_map of {release.name} names code of another repository, which is not run: {stated}",
            f"put its files into the folder and name them without the repository: {stated.rpartition('--')[2]}")
    return own_code.entries(release) is not None


def trace_confined(request: TraceRequest, limits: Limits, *, python: Path | None = None,
                   progress: Progress = SILENT) -> OpGraph:
    """`trace` of the release's own code. Raises as `trace` does, and StageError when that code takes more than its
    limits or ends its process."""
    graph, confinement = _confined("traced", request, OpGraph, request.release, limits, python, progress)
    return msgspec.structs.replace(graph, isolation=confinement.told(limits))


def ledgers_confined(release: Release, limits: Limits, *, python: Path | None = None, progress: Progress = SILENT
                     ) -> tuple[Consumption, Coverage | None]:
    """`ledgers` of the release's own code. Raises likewise."""
    both, _ = _confined("both_ledgers", release, Ledgers, release, limits, python, progress)
    return both.consumption, both.coverage


def _confined(name: str, request: object, answer: type[T], release: Release, limits: Limits, python: Path | None,
              progress: Progress) -> tuple[T, Confinement]:
    root = Path(release.root) if release.root else None
    code = [file.name for file in release.files if file.name.endswith(".py")]
    readable = [root, *((root / name).resolve() for name in code)] if root else []  # a cache of a hub consists of links
    return isolated(f"{__package__}.inside:{name}", request, answer, whose=f"the code of {release.name}", limits=limits,
                    readable=readable, python=python, progress=progress)
