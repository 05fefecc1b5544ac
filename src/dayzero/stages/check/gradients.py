"""Gradients of one small batch, sharded against a single process, both in f32."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dayzero.runtime.dumps import Sketch, Sketches
from dayzero.schema import Check, LayoutRun

from .measure import distance
from .reference import Reference

_NEGLIGIBLE = 1e-6
"""Share of the whole gradient below which one parameter's gradient is rounding noise (such as a bias that cancels)."""


def check_gradients(run: LayoutRun, folder: Path, truth: Reference) -> list[Check]:
    """One check: the parameter whose gradient is furthest off. None when the run took no gradients."""
    ours, theirs = Sketches(folder / run.dump).values, truth.sketches.values
    if not ours or not theirs:
        return []
    total = float(np.sqrt(sum(float((sketch**2).sum()) for sketch in theirs.values())))
    errors = {name: _error(ours.get(name), sketch, total) for name, sketch in theirs.items()}
    worst = max(errors, key=lambda name: errors[name])
    tolerance = 2 * truth.summation_error
    source = f"{truth.summation_source}, once forward and once backward"
    return [Check(
        name=f"{run.layout.text}: gradients, largest relative L2 of a parameter", tolerance=tolerance, source=source,
        observed=errors[worst], passed=errors[worst] <= tolerance,
        detail=f"{worst}; {len(errors)} parameters, {truth.sketches.rows} sequences")]


def _error(ours: Sketch | None, theirs: Sketch, total: float) -> float:
    """Relative L2, against at least a negligible share of the whole gradient; 1 when it is missing."""
    if ours is None:
        return 1.0
    apart = distance([(ours, theirs)])
    length = float(np.linalg.norm(theirs))
    return apart.relative_l2 * length / max(length, _NEGLIGIBLE * total) if length else apart.relative_l2
