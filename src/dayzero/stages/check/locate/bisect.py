"""Bisection: which setting of a run makes it compute something else, and where inside."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from dayzero.backends.scratch import scratch
from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.weights import check_weights
from dayzero.schema import Layout, Noun, Release
from dayzero.schema.located import Location
from dayzero.stages.check.recording import Asked, record_release

from . import locate

Settings = Mapping[str, str]
_TOKENS, _SEED = (40, 27), 11
"""Tokens of the sequences that are run when nobody gives any."""


class Tried(Noun, frozen=True, kw_only=True):
    """One run."""

    settings: dict[str, str]
    """What was not plain."""
    guilty: int = 0
    """Places out of their tolerance."""
    places: int = 0
    """Places that were compared."""
    reason: str = ""
    """Why it could not be run; empty: it ran."""


class Bisected(Noun, frozen=True, kw_only=True):
    """What was found."""

    tried: tuple[Tried, ...]
    """Every run."""
    blamed: dict[str, str]
    """Each setting that makes the run wrong alone; else the fewest that do together; empty: none do, or the plain run
    is wrong already."""
    plain_is_wrong: bool
    """Whether the run is out of tolerance without any of the settings."""
    location: Location | None
    """Where, of the run with the first that is blamed, with all of a few, or of the plain one."""

    @property
    def not_run(self) -> dict[str, str]:
        """Settings that no run could be made with: nothing is known of them."""
        known = {name for each in self.tried if not each.reason for name in each.settings}
        return {name: value for each in self.tried for name, value in each.settings.items() if name not in known}


def bisect(release: Release, varied: Settings, *, tokens: Sequence[Sequence[int]] | None = None, dtype: str = "f32",
           progress: Progress = SILENT) -> Bisected:
    """Run the release plainly (one process, one sequence at a time, plain operators), with everything that is `varied`,
    and when that is wrong with fewer and fewer of it, alone and in pairs.

    Raises NotPossible without weights or when it cannot be run, UsageError for settings that there are not.
    """
    from dayzero.runtime.substitution.settings import checked

    check_weights(release)
    if dtype not in DTYPES:
        raise UsageError(f"there is no precision {dtype!r}", f"take one of {', '.join(DTYPES)}")
    if not varied:
        raise UsageError("there is nothing to vary", "give settings such as --vary attention=sdpa")
    for name, value in varied.items():
        checked(name, value)
    ids = tokens or _tokens(release.model.vocab_size)
    with scratch("dayzero-bisect-") as folder:
        return _Bisection(release, ids, dtype, folder, progress).found(dict(varied))


def _tokens(vocabulary: int) -> list[list[int]]:
    generator = np.random.default_rng(_SEED)
    return [generator.integers(0, vocabulary, length).tolist() for length in _TOKENS]


class _Bisection:
    def __init__(self, release: Release, tokens: Sequence[Sequence[int]], dtype: str, folder: Path, progress: Progress
                 ) -> None:
        self._release, self._tokens, self._dtype = release, tokens, dtype
        self._folder, self._progress = folder, progress
        self._tried: list[Tried] = []

    def found(self, varied: dict[str, str]) -> Bisected:
        """From the plain run on."""
        if (plain := self._judged({})) is None:
            raise NotPossible(f"the release does not run plainly: {self._tried[0].reason}", "see the reason")
        if plain.guilty:
            return self._result({}, plain_is_wrong=True)
        together = self._judged(varied)
        if together is not None and not together.guilty:
            return self._result({})
        if alone := self._wrong(varied, 1, together):
            return self._result({name: value for each in alone for name, value in each.items()}, shown=alone[0])
        few = next(iter(self._wrong(varied, 2, together)), {}) if len(varied) > 1 else {}
        return self._result(few or (varied if together is not None else {}))

    def _wrong(self, varied: dict[str, str], size: int, together: Location | None) -> list[dict[str, str]]:
        """So many of the settings that make the run wrong: all single ones, or the first pair."""
        found = []
        for names in combinations(varied, size):
            some = {name: varied[name] for name in names}
            one = together if some == varied else self._judged(some)
            if one is not None and one.guilty:
                found.append(some)
                if size > 1:
                    break
        return found

    def _result(self, blamed: dict[str, str], *, plain_is_wrong: bool = False, shown: dict[str, str] | None = None
                ) -> Bisected:
        location = self._located(blamed if shown is None else shown, causes=True) if blamed or plain_is_wrong else None
        return Bisected(tried=tuple(self._tried), blamed=blamed, plain_is_wrong=plain_is_wrong, location=location)

    def _judged(self, settings: dict[str, str]) -> Location | None:
        """None when it cannot be run so."""
        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        self._progress.update(f"running {told or 'plain'}")
        try:
            found = self._located(settings, causes=False)
        except NotPossible as outcome:
            self._tried.append(Tried(settings=settings, reason=outcome.reason))
            return None
        self._tried.append(Tried(settings=settings, guilty=len(found.guilty), places=len(found.places)))
        return found

    def _located(self, settings: dict[str, str], *, causes: bool) -> Location:
        folder = self._folder / "dump"
        shutil.rmtree(folder, ignore_errors=True)
        self._recorder(settings)(settings, folder)
        return locate(str(self._release.root), folder, causes=causes, progress=self._progress)

    def _recorder(self, settings: dict[str, str]) -> Callable[[dict[str, str], Path], None]:
        return self._of_ranks if "layout" in settings else self._here

    def _here(self, settings: dict[str, str], folder: Path) -> None:
        from dayzero.runtime.substitution.settings import Plain, recorded

        recorded(Plain(Path(str(self._release.root)), self._dtype), settings, self._tokens, folder)

    def _of_ranks(self, settings: dict[str, str], folder: Path) -> None:
        """Ranks are started; they take a precision and decode steps, and no other settings."""
        if other := settings.keys() - {"layout", "dtype", "decode"}:
            raise NotPossible(f"ranks of a layout do not run here with {', '.join(sorted(other))}", "vary it alone")
        asked = Asked(layout=Layout.parse(settings["layout"]), dtype=settings.get("dtype", self._dtype),
                      decode=int(settings.get("decode", 0)))
        record_release(self._release, self._tokens, folder, asked, progress=self._progress)
