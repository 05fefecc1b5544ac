"""Whether a release has its weights, before anything is started. Without torch."""

from __future__ import annotations

from pathlib import Path

from dayzero.errors import NotPossible
from dayzero.schema import Release
from dayzero.text import some


def check_weights(release: Release, *, partial: bool = False, away: bool = False) -> Path:
    """The folder that it is in. Raises NotPossible when there is nothing to run: no weights, a file that is cut short,
    or, unless `partial`, one that is missing. `away`: whether weights may be in an object store."""
    gone, short = release.missing_shards, tuple(release.short_files)
    part = bool(gone or short) and release.tensors.count > 0
    if release.store and not away:
        raise NotPossible(f"the weights are in {release.store}: only --stream reads them there",
                          "add --stream, without --trust-remote-code; or copy the release here")
    if release.root is None or not (release.has_weights or release.store or part):
        raise NotPossible("no weights: the release has names and shapes only", "get the weights of the release")
    if gone and not partial:
        raise NotPossible(f"files of weights are missing: {some(gone, 1)}",
                          "get them; the layers that are here can be run with --stream --partial")
    if short:
        raise NotPossible(f"files of weights end before their data does: {some(short, 1)}", "fetch them again")
    return Path(release.root).resolve()
