"""A graph for whoever asks: of a release, from what was traced before where nothing changed; or from a saved trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from dayzero.errors import ReleaseError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.environment import interpreter
from dayzero.schema import OpGraph, Release, from_json
from dayzero.schema.store import Artifact

Environment = Literal["present", "declared"]
_LIMIT = 2**30
"""Bytes of the largest saved trace that is read."""
_BEGINNING = 64
"""Bytes that tell JSON from a card."""


def read_for_trace(source: str, *, revision: str | None = None, progress: Progress = SILENT) -> Release:
    """The release, without its weights: a trace needs none. Raises as `stages.read.read`."""
    from dayzero.stages.read import read

    return read(source, revision=revision, metadata_only=True, progress=progress)


def traced(source: str, *, revision: str | None = None, again: bool = False, cache: Path | None = None,
           env: Environment = "present", progress: Progress = SILENT, **options: Any) -> OpGraph:
    """The graph of a release folder, card or hub id; where its code cannot run, that from operator definitions.
    `options` are those of `stages.trace.trace`. With the environment that is `declared`, the transformers that the
    release states traces it; it is installed unless it was before. What was traced before with the same options, files
    and libraries is taken from the cache (default: below $XDG_CACHE_HOME) unless `again`.

    Raises as `stages.read.read`, `stages.trace.trace` and `runtime.environment.interpreter`.
    """
    from dayzero.stages.read.digests import cache_folder
    from dayzero.stages.trace import kept

    release = None if os.path.exists(source) and revision is None else read_for_trace(
        source, revision=revision, progress=progress)
    place = kept.place(cache_folder(cache), _files(source, release), {**options, "env": env})
    found = None if again else kept.load(place)
    if found is not None:
        return found
    from dayzero.stages.trace import graph_of

    release = release or read_for_trace(source, progress=progress)
    if env == "declared":
        options["python"] = interpreter(release.config, cache_folder(cache), progress)
    graph = graph_of(release, progress=progress, **options)
    if graph.operators:  # one without code takes no time
        kept.keep(place, graph)
    return graph


def is_saved(source: str) -> bool:
    """Whether it is the file of a saved trace, whatever its name: a file that is JSON, as no release is one. One that
    is called `*.json` is meant to be."""
    if not os.path.isfile(source):
        return False
    try:
        with open(source, "rb") as file:
            return source.endswith(".json") or file.read(_BEGINNING).lstrip()[:1] == b"{"
    except OSError:
        return False  # whoever reads it says why


def other_of(source: str, *, revision: str | None = None, progress: Progress = SILENT) -> OpGraph | None:
    """What a trace is to be compared with, before that is made: the graph of a saved trace; None for a release, which
    is there. Raises as `saved_or_traced`."""
    if is_saved(source):
        return saved_or_traced(source)
    if os.path.isfile(source) and not source.endswith(".toml"):
        raise UsageError(f"{source} is no saved trace, which is JSON, and no release",
                         "give a file that --json wrote, a release folder, a card (.toml) or a hub id")
    read_for_trace(source, revision=revision, progress=progress)
    return None


def saved_or_traced(source: str, **options: Any) -> OpGraph:
    """The graph of a saved trace (of `dayzero trace --json`, or of a run directory), or of a release as in `traced`.
    Raises UsageError for JSON of another kind."""
    if not is_saved(source):
        return traced(source, **options)
    from dayzero.stages.read.folder import read_bounded
    from dayzero.stages.trace import from_contract

    try:
        data = read_bounded(Path(source), _LIMIT, source)
    except ReleaseError as error:
        raise UsageError(f"cannot read the trace: {error.message}", "give a file that --json wrote") from None
    try:
        return from_json(data, Artifact).load(OpGraph)
    except msgspec.DecodeError:
        pass
    try:
        return from_contract(msgspec.json.decode(data, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise UsageError(f"{source} is no saved trace: {error}", "give a file that --json wrote") from None


def _files(source: str, release: Release | None) -> list[Path]:
    """All files that the release consists of."""
    root = Path(source) if release is None else Path(release.root or source)
    if not root.is_dir():
        return [root.absolute()]
    root = root.resolve()
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
