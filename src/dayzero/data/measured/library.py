"""The slices for an operator on a device under an engine, and the nearest answer among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from dayzero.errors import NotPossible

from .grid import DOUBLING, Array, Found, Slice
from .mapping import Mapping as Tables
from .mapping import Row, mapping
from .own import OwnTable, own_table
from .package import File, Source, source
from .reading import Keys, slices

FOREIGN = 1.5
"""Doublings that another engine's kernel counts as."""
OTHER = 1.0
"""Doublings that another value of a key counts as, such as rows' instead of blocks' scales."""
OLDER = 0.01
"""Doublings that each version below the newest counts as."""
LAUNCH = 5.0
"""Factor on the shortest time of others from which on a table's own shortest is that of a launch, not of a kernel."""
LAUNCHED = 3.0
"""Doublings that such a table counts as: engines start captured graphs, which pay no launch."""
FAR = 6.0
"""Doublings, over all axes, from which on nothing is known."""


@dataclass(frozen=True)
class Table:
    """A slice and what it is from."""

    slice: Slice
    """The points."""
    name: str
    """Where they are from."""
    penalty: float
    """Doublings that it counts as away."""


@dataclass(frozen=True)
class Answer:
    """Of a library to many queries."""

    found: Found
    """The nearest of each."""
    distance: Array
    """Doublings to it, with those that its engine, version and keys count as."""
    table: Array
    """Index into `names`; -1: nothing is near."""
    names: tuple[str, ...]
    """Tables that were read."""


@dataclass
class Library:
    """Tables of a package and of a user."""

    source: Source | None
    """Of the package; None: there is none."""
    own: Sequence[OwnTable] = ()
    """A user's, which come first."""
    _read: dict[tuple[Path, str], dict[Keys, Slice]] = field(default_factory=dict)
    _tables: dict[tuple[str, str, str, Keys], list[Table]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What predictions call it."""
        return ", ".join([*([self.source.name] if self.source else []), *(one.about.source for one in self.own)])

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Names of tables that no row of the mapping reads."""
        return self.source.unmapped if self.source else ()

    def owns(self, operator: str) -> bool:
        """Whether a user's own table times the operator."""
        return any(one.about.operator == operator for one in self.own)

    def knows(self, device: str) -> bool:
        """Whether anything was measured on a device."""
        system = mapping().devices.get(device)
        return any(one.about.device == device for one in self.own) or bool(
            self.source and any(file.system == system for file in self.source.files))

    def tables(self, operator: str, device: str, engine: str, keys: Mapping[str, str]) -> list[Table]:
        """What there is, nearest first: a user's own, the engine's newest, others'; then the same for what may stand
        for the keys."""
        key = operator, device, engine, tuple(sorted(keys.items()))
        if key not in self._tables:
            made = [replace(table, penalty=table.penalty + OTHER * number)
                    for number, choice in enumerate(mapping().choices(dict(keys)))
                    for table in self._matching(operator, device, engine, choice)]
            least = min((table.slice.least for table in made), default=0.0)
            made = [replace(table, penalty=table.penalty + LAUNCHED) if table.slice.least > LAUNCH * least else table
                    for table in made]
            self._tables[key] = sorted(made, key=lambda table: table.penalty)
        return self._tables[key]

    def _matching(self, operator: str, device: str, engine: str, keys: Mapping[str, str]) -> Iterator[Table]:
        wanted = set(keys.items())
        for own in self.own:
            if (own.about.operator, own.about.device) == (operator, device):
                foreign = FOREIGN if own.about.engine not in ("", engine) else 0.0
                for held, one in own.slices.items():
                    if set(held) <= wanted:
                        yield Table(one, own.about.source, foreign)
        for file, row, penalty in self._files(operator, device, engine, mapping()):
            key = file.path, f"{row.operator} {row.keys} {row.where}"
            if key not in self._read:
                self._read[key] = slices(file.path, row)
            for held, one in self._read[key].items():
                if set(held) <= wanted:
                    yield Table(one, f"{file.engine} {file.version}, {file.system}", penalty)

    def _files(self, operator: str, device: str, engine: str, known: Tables) -> Iterator[tuple[File, Row, float]]:
        if self.source is None or device not in known.devices:
            return
        folder, system = known.engines.get(engine, engine), known.devices[device]
        files = [file for file in self.source.files if file.system == system]
        older: dict[tuple[str, str], int] = {}
        for file in sorted(files, key=lambda file: file.newness, reverse=True):
            for row in known.rows(file.path.name):
                if row.operator == operator:
                    number = older[file.engine, row.file] = older.get((file.engine, row.file), -1) + 1
                    yield file, row, OLDER * number + (FOREIGN if file.engine != folder else 0.0)

    def read(self, operator: str, device: str, engine: str, keys: Mapping[str, str], axes: Mapping[str, Array]
             ) -> Answer:
        """The nearest answer to each of many queries (arrays that broadcast). Raises NotPossible without pyarrow."""
        best: Found | None = None
        names: list[str] = []
        distance, table = np.array([]), np.array([], dtype=int)
        for one in self.tables(operator, device, engine, keys):
            if best is not None and (distance <= one.penalty).all():
                break
            found = one.slice.read(axes)
            found = replace(found, spread=np.hypot(found.spread, DOUBLING * one.penalty))
            names.append(one.name)
            off = found.away + one.penalty
            nearer = off < distance if best else np.full(len(off), True)
            table = np.where(nearer, len(names) - 1, table if best else -1)
            distance = np.where(nearer, off, distance if best else np.inf)
            best = merged(nearer, found, best) if best else found
        if best is None:
            count = np.broadcast(*(np.asarray(one) for one in axes.values())).size
            return Answer(nothing(count), np.full(count, np.inf), np.full(count, -1), ())
        near = distance < FAR
        return Answer(replace(best, seconds=np.where(near, best.seconds, np.nan)), distance,
                      np.where(near, table, -1), tuple(names))


def merged(chosen: Array, first: Found, second: Found) -> Found:
    """The first where chosen, else the second."""
    at = {name: np.where(chosen, first.at.get(name, np.nan), second.at.get(name, np.nan))
          for name in {**first.at, **second.at}}
    return Found(at=at, **{name: np.where(chosen, getattr(first, name), getattr(second, name))
                           for name in ("seconds", "spread", "away", "filled", "on_point")})


def nothing(count: int) -> Found:
    """That nothing is known."""
    off = np.full(count, False)
    return Found(seconds=np.full(count, np.nan), spread=np.full(count, np.nan), away=np.full(count, np.inf),
                 filled=off, on_point=off, at={})


@cache
def library(folder: Path | None = None, own: tuple[Path, ...] = ()) -> Library:
    """The tables of the package or a folder, and of a user's own files. Raises TargetError; NotPossible where there are
    none at all."""
    tables = tuple(own_table(path) for path in own)
    try:
        return Library(source(folder), tables)
    except NotPossible:
        if not tables:
            raise
        return Library(None, tables)
