"""Layer by layer: how far each layout is from the reference, and where it first is too far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dayzero.runtime.dumps import Dump, layer_number
from dayzero.schema import Divergence, LayerError, LayoutRun

from .measure import distance
from .reference import Reference


class Comparison(NamedTuple):
    """One dump of a run against the reference's."""

    errors: list[LayerError]
    """In the order in which a token passes the places."""
    source: str
    """Where their tolerances come from."""


def comparisons(run: LayoutRun, folder: Path, truth: Reference) -> list[Comparison]:
    """What was dumped in f32, where a wrong weight stands out against rounding, and then in the run's own dtype.

    Raises StoreError when the run did not dump a place of its own dtype.
    """
    dumps = folder / run.dump
    own = Comparison(_errors(run.layout.text, Dump(dumps, run.dtype), truth, truth.tolerance), truth.tolerance_source)
    if run.dtype == "f32" or not any(dumps.glob("f32-rank-*.safetensors")):
        return [own]
    exact = _errors(f"{run.layout.text} in f32", Dump(dumps, "f32"), truth, truth.exact)
    return [Comparison(exact, truth.exact_source), own]


def _errors(label: str, dump: Dump, truth: Reference, tolerance: Callable[[str], float]) -> list[LayerError]:
    errors = []
    for place in truth.dump.places:
        apart = distance(((dump.read(prompt, place), truth.dump.read(prompt, place)) for prompt in truth.dump.prompts),
                         f"{label}: {place}")
        errors.append(LayerError(layout=label, place=place, relative_l2=apart.relative_l2, max_abs=apart.max_abs,
                                 cosine=apart.cosine, tolerance=tolerance(place)))
    return errors


def order(place: str) -> tuple[int, int]:
    """Key that sorts places as a token passes them; what is none of them comes last."""
    return {"embedding": 0, "norm": 2, "logits": 3}.get(place, 4 if layer_number(place) is None else 1), (
        layer_number(place) or 0)


def earlier(files: Divergence | None, seen: Divergence | None) -> Divergence | None:
    """Of where the files and where the values first differ, what comes first in the model. Where it is one place, as it
    was seen, with the tensor that explains it."""
    if files is None or seen is None:
        return files or seen
    if files.place == seen.place:
        return msgspec.structs.replace(seen, tensor=files.tensor)
    return min(files, seen, key=lambda each: order(each.place))


def first_divergence(errors: Sequence[LayerError]) -> Divergence | None:
    """The first place out of tolerance; None when all are within."""
    before = 0.0
    for error in errors:
        if error.relative_l2 > error.tolerance:
            return Divergence(layout=error.layout, place=error.place, layer=layer_number(error.place),
                              relative_l2=error.relative_l2, before=before)
        before = error.relative_l2
    return None
