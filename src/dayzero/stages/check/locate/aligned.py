"""A dump of other code under the reference's names: a running engine fuses modules, hands residuals on apart and calls
its arguments otherwise. What belongs together is found as `compare` does, against what the reference computes of the
same tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.errors import StoreError
from dayzero.runtime.golden import Dump, open_dump
from dayzero.runtime.recording import record
from dayzero.runtime.substitution import Held, Place
from dayzero.runtime.substitution.reference import Reference
from dayzero.stages.check.compare.assemble import Known, known
from dayzero.stages.check.compare.others import Other
from dayzero.stages.check.compare.pieces import split_key
from dayzero.stages.check.compare.places import Address

from .recorded import DumpRows


def of_other_code(reference: Reference, dump: Dump) -> bool:
    """Whether a module of the run is of another class than the reference's of the same path, or has none."""
    ours = reference.modules
    return any(type(ours[entry.name]).__name__ != entry.module if entry.name in ours else True
               for entry in (item.entry for item in dump.items) if entry.name and entry.what != "parameter")


class Aligned:
    """A `Recorded`: what a run had, where the reference has it."""

    def __init__(self, run: DumpRows, reference: Known) -> None:
        self.run, self.dump, self.not_compared = run, run.dump, run.not_compared
        self.sequences, self.precision = run.sequences, run.precision
        self._other = Other(reference, known(run.dump))
        self._addresses = {Place(each.name, each.what, each.slot, each.call): each for each in reference.places
                           if each.lap == 0}
        self._held: dict[Place, tuple[NDArray[np.int64], NDArray[Any]] | None] = {}

    @property
    def places(self) -> list[Place]:
        """Those of the reference that the run has too."""
        return [place for place in self._addresses if self._rows(place) is not None]

    @property
    def alone(self) -> list[Place]:
        """Those of modules that only the run has, under its own names."""
        return [place for place in self.run.places if self._other.names.pair_of(place.name) is None]

    @property
    def notes(self) -> list[str]:
        """How the two belong together."""
        return self._other.told

    def passes(self, sequence: int) -> NDArray[np.int64]:
        """See `Recorded`."""
        return self.run.passes(sequence)

    def held(self, place: Place, sequence: int) -> Held | None:
        """See `Recorded`."""
        found = self._rows(place) if place in self._addresses else None
        if found is None:
            return None
        keys, rows = found
        sequences, positions = split_key(keys)
        own = (sequences == sequence) & (positions < len(self.sequences[sequence]))
        known_rows = np.zeros(len(self.sequences[sequence]), dtype=bool)
        values = np.zeros((len(known_rows), rows.shape[1]), dtype=rows.dtype)
        values[positions[own]], known_rows[positions[own]] = rows[own], True
        return Held(values, known_rows) if own.any() else None

    def _rows(self, place: Place) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
        """(keys, [rows, width]) of all tokens."""
        if place not in self._held:
            self._held[place] = self._read(self._addresses[place])
        return self._held[place]

    def _read(self, address: Address) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
        try:
            grid = self._other.grid(address)
        except StoreError:
            return None
        if grid is None or grid.extra != 1 or len(grid.columns) < grid.width:
            return None
        keys = grid.keys[grid.keys >= 0]
        return keys, np.ascontiguousarray(grid.read(keys))

    def close(self) -> None:
        """Close its files."""
        self.run.close()


@contextmanager
def renamed(reference: Reference, run: DumpRows) -> Iterator[DumpRows | Aligned]:
    """The run as it is when its modules are the reference's; else under the reference's names."""
    if not of_other_code(reference, run.dump):
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="dayzero-") as folder:
        with torch.no_grad(), record(reference.watched, Path(folder) / "reference") as recording:
            for sequence, tokens in run.sequences.items():
                recording.expect([sequence])
                reference.forward(torch.from_numpy(np.ascontiguousarray(tokens))[None])
        with open_dump(Path(folder) / "reference") as dump:
            yield Aligned(run, known(dump))
