"""Looks into guilty places: layer, module, operator, pattern, cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.progress import SILENT, Progress
from dayzero.runtime.substitution import Call, Place, Recorded, Runner
from dayzero.runtime.substitution.causes import operators
from dayzero.schema.located import Located, Pattern, PlaceError
from dayzero.stages.check.compare.places import layer_of
from dayzero.stages.check.patterns import Facts, describe

from .causes import Causes, Hints, without_layer
from .judging import Judged

Array = NDArray[Any]


class Finder:
    """Of one run."""

    def __init__(self, runner: Runner, run: Recorded, judged: Judged, *, causes: bool, progress: Progress = SILENT
                 ) -> None:
        self._runner, self._run, self._judged = runner, run, judged
        self._causes, self._progress = causes, progress

    def located(self, limit: int) -> list[Located]:
        """Guilty places in the order of execution: of each kind of place the one in the first layer."""
        found: list[Located] = []
        seen: set[tuple[str, ...]] = set()
        for place, error in zip(self._judged.keys, self._judged.places, strict=True):
            kind = without_layer(error.module), without_layer(error.name), error.what
            if not error.guilty or kind in seen or len(found) >= limit:
                continue
            seen.add(kind)
            self._progress.update(f"looking into {error.module or 'the model'}", len(found), limit)
            found.append(self._look(place, error))
        return found

    def _look(self, place: Place, error: PlaceError) -> Located:
        patterns = self._patterns(place)
        search = Causes(self._runner, self._run, self._judged.computed, place, noise=error.noise.overall)
        causes = search.find(_hints(patterns)) if self._causes else ()
        return Located(layer=layer_of(error.module), module=error.module, op=operators.named(search.calls),
                       place=error, patterns=patterns, causes=causes, tried=search.count, cut_short=search.cut_short)

    def _patterns(self, place: Place) -> tuple[Pattern, ...]:
        values, references, positions, sequences, decoded = [], [], [], [], []
        for sequence, made in self._judged.computed.items():
            held = self._run.held(place, sequence)
            if held is None or place not in made.values or held.values.dtype.kind != "f":
                continue
            reference = made.values[place].float().numpy()
            references.append(reference.reshape(len(reference), -1)[held.known])
            values.append(held.values.reshape(len(reference), -1)[held.known])
            positions.append(np.flatnonzero(held.known))
            sequences.append(np.full(int(held.known.sum()), sequence))
            passes = self._run.passes(sequence)
            decoded.append(((np.bincount(passes)[passes] == 1) & (passes > passes.min()))[held.known])
        if not values:
            return ()
        facts = replace(self._facts(place), positions=np.concatenate(positions), decoded=np.concatenate(decoded),
                        sequences=np.concatenate(sequences))
        return describe(np.concatenate(references), np.concatenate(values), facts=facts)

    def _facts(self, place: Place) -> Facts:
        """Heads and experts."""
        text = self._runner.truth.text_config
        heads = [int(getattr(text, key)) for key in ("num_attention_heads", "num_key_value_heads",
                 "linear_num_value_heads", "linear_num_key_heads") if isinstance(getattr(text, key, None), int)]
        return Facts(heads=tuple(dict.fromkeys(heads)), experts=self._routing(place))

    def _routing(self, place: Place) -> Array | None:
        """[rows, top k] of the experts that the place is of, or of those that its module holds."""
        for call in (self._judged.by[place], Call(place.name, place.call)):
            indices = Place(call.name, "router", "indices", call.number)
            rows = [held.values.reshape(len(held.values), -1)[held.known]
                    for sequence in self._judged.computed if (held := self._run.held(indices, sequence)) is not None]
            if rows:
                return np.concatenate(rows)
        return None


def _hints(patterns: tuple[Pattern, ...]) -> Hints:
    channels = next(((each.first, each.end) for each in patterns if each.name in ("channels", "rank boundary")
                     and each.first >= 0), None)
    since = next((each.first for each in patterns if each.name == "positions"), 0)
    return Hints(channels, tuple(each.first for each in patterns if each.name == "experts"), since)
