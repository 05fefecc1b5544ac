"""Runs whose weights are the reference's rounded to few levels: which matrices, how, and what is wrong beside that.

Ways to round are tried on what guilty matrices gave, as every cause is. Matrices that one explains are then rounded so
in the reference too, and everything is judged again: what is still guilty is something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import msgspec
import numpy as np
import torch

from dayzero.progress import SILENT, Progress
from dayzero.runtime.recording.values import slots
from dayzero.runtime.substitution import Place, Recorded, Runner
from dayzero.runtime.substitution.causes.roundings import Rounding, kinds_of, roundings
from dayzero.runtime.substitution.matrices import matrices
from dayzero.runtime.substitution.rows import rows_of
from dayzero.schema.located import PlaceError, RoundedWeights

from .judging import Judged

_ENOUGH = 0.9
"""Share of a matrix's error that a rounding has to explain."""
_ROWS, _TOKENS = 48, 256
"""Rows of a matrix, and tokens, that ways to round are tried on."""
_FEWEST, _PART = 2, 0.25
"""Matrices that are rounded, at least, and of all: fewer are a fault of their own."""
_MANY, _SPREAD = 8, 4.0
"""Matrices that are alike, at least, and how many times as large errors of nine tenths of them may be."""
_LOOKED = 3
"""Matrices that every way is tried on before it is given up."""


@dataclass
class _Matrix:
    """A guilty place that a matrix of the module's own makes, by product or by look-up."""

    error: PlaceError
    module: Any
    weight: torch.Tensor
    given: torch.Tensor | None
    """[tokens, columns]; None: rows are looked up."""
    looked_up: torch.Tensor | None
    made: torch.Tensor
    """[tokens, rows], or [tokens, columns] of those that are looked up."""
    _rows: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        chosen = torch.linspace(0, len(self.weight) - 1, min(len(self.weight), _ROWS)).long()
        self._rows = chosen if self.looked_up is None else self.looked_up[:_ROWS]
        self.made = self.made[:, chosen] if self.looked_up is None else self.made[:_ROWS]
        noise = self.error.noise.overall**2 * float((self.made**2).sum(dtype=torch.float64))
        self._noise, self._before = noise, self._left(self.weight[self._rows])

    def explained(self, how: Rounding) -> float:
        """Share of the error's energy above noise that is gone with weights rounded so."""
        part = how.of(self.weight[self._rows]) if how.by_rows else how.of(self.weight)[self._rows]
        whole = self._before - self._noise
        return 1.0 - max(0.0, self._left(part) - self._noise) / whole if whole > 0 else 0.0

    def _left(self, rows: torch.Tensor) -> float:
        made = rows if self.given is None else self.given @ rows.T
        return float(((self.made - made) ** 2).sum(dtype=torch.float64))


class Found:
    """What was found in a run."""

    def __init__(self, runner: Runner, recorded: Recorded, judged: Judged, progress: Progress = SILENT) -> None:
        self._runner, self._recorded, self._judged, self._progress = runner, recorded, judged, progress
        self.ways: dict[Rounding, list[PlaceError]] = {}
        """With the places that each of them explains."""

    def round_reference(self) -> bool:
        """Look for roundings, and give the reference weights that are rounded so. Whether there are any."""
        places = [(place, error) for place, error in zip(self._judged.keys, self._judged.places, strict=True)
                  if error.guilty and self._is_matrix(error)]
        places.sort(key=lambda each: self._size(each[1].module))
        least = max(_FEWEST, _PART * sum(map(self._is_matrix, self._judged.places)))
        if len(places) < least:
            return False
        given_up = 0
        for number, (place, error) in enumerate(places):
            self._progress.update("trying roundings of weights", number, len(places))
            matrix = self._matrix(place, error)
            if matrix is None:
                continue
            how = _best(matrix, self.ways) or (_best(matrix, _new(matrix)) if given_up < _LOOKED else None)
            if how is not None:
                self.ways.setdefault(how, []).append(error)
            else:
                given_up += 1
            if given_up >= _LOOKED and not self.ways:
                return False
        if sum(map(len, self.ways.values())) < least:
            self.ways.clear()
        for how, errors in self.ways.items():
            self._runner.change({error.module for error in errors}, how.of)
        return bool(self.ways)

    def settle(self, judged: Judged) -> None:
        """In what was judged with rounded weights: where these explain the error, what they leave is of values that
        halves or scales put on the next level."""
        before = {(error.name, error.call): error.error.overall for errors in self.ways.values() for error in errors}
        for number, error in enumerate(judged.places):
            was = before.get((error.name, error.call), 0.0) if self._is_matrix(error) else 0.0
            left = sqrt(max(0.0, error.error.overall**2 - error.noise.overall**2))
            if error.guilty and left <= sqrt(1 - _ENOUGH) * was:
                judged.places[number] = msgspec.structs.replace(error, guilty=False)

    def _is_matrix(self, error: PlaceError) -> bool:
        return error.what == "output" and error.name == error.module and self._size(error.module) > 0

    def _size(self, name: str) -> int:
        module: Any = self._runner.modules.get(name)
        return sum(int(getattr(module, key).numel()) for key in matrices(module)) if module is not None else 0

    def _matrix(self, place: Place, error: PlaceError) -> _Matrix | None:
        module: Any = self._runner.modules.get(error.module)
        if module is None or matrices(module) != ["weight"] or module.weight.dim() != 2:
            return None
        given, made = list[torch.Tensor](), list[torch.Tensor]()
        for sequence, computed in self._judged.computed.items():
            call, held = computed.calls.get(self._judged.by[place]), self._recorded.held(place, sequence)
            if call is None or held is None:
                continue
            length, known = len(held.known), torch.from_numpy(held.known)
            tensor = next((each for _, each in slots((call.arguments, call.named))), None)
            rows = None if tensor is None else rows_of(tensor, length)
            if rows is None:
                return None
            given.append(rows.reshape(length, -1)[known])
            made.append(torch.from_numpy(np.ascontiguousarray(held.values.reshape(length, -1)))[known])
        if not given:
            return None
        return _made(error, module, torch.cat(given)[:_TOKENS], torch.cat(made).float()[:_TOKENS])

    def told(self) -> tuple[RoundedWeights, ...]:
        """For the location, what explains most matrices first."""
        whole = [error for error in self._judged.places if self._is_matrix(error)]
        ways = sorted(((how.told, errors) for how, errors in self.ways.items()), key=lambda each: -len(each[1]))
        return tuple(RoundedWeights(
            how=how, modules=tuple(error.module for error in errors), of=len(whole),
            smallest=min(error.error.overall for error in errors), largest=max(error.error.overall for error in errors))
            for how, errors in ways or _alike(whole, self._judged.places))


def _alike(matrices: Sequence[PlaceError], places: Sequence[PlaceError]) -> list[tuple[str, list[PlaceError]]]:
    """All matrices' places where nearly all of them are off by about as much, and nothing else is."""
    guilty = [error for error in matrices if error.guilty]
    if len(guilty) < max(_MANY, _ENOUGH * len(matrices)) or len(guilty) < sum(each.guilty for each in places):
        return []
    low, high = np.quantile([error.error.overall for error in guilty], (0.1, 0.9))
    return [("", guilty)] if high <= _SPREAD * low else []


def _made(error: PlaceError, module: Any, given: torch.Tensor, made: torch.Tensor) -> _Matrix | None:
    """None where the module is neither a product with its matrix nor a look-up of its rows."""
    weight = module.weight.detach().float()
    if given.is_floating_point():
        bias = module._parameters.get("bias")
        if given.shape[1] != weight.shape[1] or made.shape[1] != weight.shape[0]:
            return None
        return _Matrix(error, module, weight, given.float(), None,
                       made if bias is None else made - bias.detach().float())
    if given.shape[1] != 1 or made.shape[1] != weight.shape[1]:
        return None
    return _Matrix(error, module, weight, None, given[:, 0].long(), made)


def _new(matrix: _Matrix) -> Iterator[Rounding]:
    """All ways: of the one that explains most its variants too."""
    ways = list(roundings())
    shares = [matrix.explained(how) for how in ways]
    yield from kinds_of(ways[int(np.argmax(shares))])


def _best(matrix: _Matrix, ways: Iterable[Rounding]) -> Rounding | None:
    """The one that explains most, and enough."""
    shares = {how: matrix.explained(how) for how in ways}
    best = max(shares, key=shares.__getitem__, default=None)
    return best if best is not None and shares[best] > _ENOUGH else None
