"""Gradients of one small batch, sharded against a single process, both in f32."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import numpy as np

from dayzero.runtime.dumps import Sketch, Sketches
from dayzero.schema import Check, LayoutRun

from .measure import distance, judged
from .reference import Reference

_NEGLIGIBLE = 1e-6
"""Share of the whole gradient below which one parameter's gradient is rounding noise (such as a bias that cancels)."""


def check_gradients(run: LayoutRun, folder: Path, truth: Reference) -> list[Check]:
    """One check: the parameter whose gradient is furthest off. None when the run or the reference took no gradients."""
    ours, theirs = Sketches(folder / run.dump).values, truth.sketches.values
    if not ours or not theirs:
        return []
    errors = errors_of(ours, theirs)
    worst = max(errors, key=lambda name: errors[name])
    return [judged(f"{run.layout.text}: gradients, largest relative L2 of a parameter", errors[worst],
                   truth.backward, truth.backward_source,
                   f"{worst}; {len(errors)} parameters, {truth.sketches.rows} sequences")]


def errors_of(ours: Mapping[str, Sketch], theirs: Mapping[str, Sketch]) -> dict[str, float]:
    """Relative L2 of each parameter's gradient, of sketches."""
    total = float(np.sqrt(sum(float((sketch**2).sum()) for sketch in theirs.values())))
    return {name: _error(name, ours.get(name), sketch, total) for name, sketch in theirs.items()}


def _error(name: str, ours: Sketch | None, theirs: Sketch, total: float) -> float:
    """Relative L2, against at least a negligible share of the whole gradient; 1 when it is missing, FAR when a value is
    not a number."""
    if ours is None:
        return 1.0
    apart = distance([(ours, theirs)], f"the gradient of {name}").relative_l2
    length = float(np.linalg.norm(theirs))
    return apart * (length / max(length, _NEGLIGIBLE * total)) if length and isfinite(total) else apart
