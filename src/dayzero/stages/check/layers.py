"""Layer by layer: how far each layout is from the reference, and where it first is too far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dayzero.runtime.dumps import Dump, layer_number
from dayzero.schema import Divergence, LayerError, LayoutRun

from .measure import distance
from .reference import Reference


def layer_errors(run: LayoutRun, folder: Path, truth: Reference) -> list[LayerError]:
    """In the order in which a token passes the places. Raises StoreError when the run did not dump one of them."""
    dump = Dump(folder / run.dump, run.dtype)
    errors = []
    for place in truth.dump.places:
        apart = distance((dump.read(prompt, place), truth.dump.read(prompt, place)) for prompt in truth.dump.prompts)
        errors.append(LayerError(layout=run.layout.text, place=place, relative_l2=apart.relative_l2,
                                 max_abs=apart.max_abs, cosine=apart.cosine, tolerance=truth.tolerance(place)))
    return errors


def first_divergence(errors: Sequence[LayerError]) -> Divergence | None:
    """The first place out of tolerance; None when all are within."""
    before = 0.0
    for error in errors:
        if error.relative_l2 > error.tolerance:
            return Divergence(layout=error.layout, place=error.place, layer=layer_number(error.place),
                              relative_l2=error.relative_l2, before=before)
        before = error.relative_l2
    return None
