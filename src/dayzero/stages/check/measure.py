"""How far two sets of values are apart."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from dayzero.errors import StoreError
from dayzero.runtime.dumps import Array, Sketch
from dayzero.schema import Check

FAR = sys.float_info.max
"""Stands for a distance that is not a number: JSON has neither infinities nor NaN."""


@dataclass(frozen=True)
class Distance:
    """x against the reference r, over all pairs together."""

    relative_l2: float
    """||x - r|| / ||r||; FAR when nothing was compared."""
    max_abs: float
    """Largest |x - r|."""
    cosine: float
    """Cosine of the angle between x and r."""
    largest: float
    """Largest |r|."""


def distance(pairs: Iterable[tuple[Array | Sketch, Array | Sketch]], what: str = "the run") -> Distance:
    """Of all (x, r), each of one shape. Values that are not numbers are infinitely far.

    Raises StoreError when `what` was dumped in another shape than the reference's.
    """
    difference = across = lengths = truth = worst = largest = 0.0
    count = 0
    for values, reference in pairs:
        if values.shape != reference.shape:
            raise StoreError(f"{what} was dumped in shape {list(values.shape)}; the reference has "
                             f"{list(reference.shape)}", "run again with --from run --force")
        x, r = values.astype(np.float64), reference.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not a number is dealt with below
            gap = np.abs(x - r)
            difference += float((gap**2).sum())
            across += float((x * r).sum())
            lengths += float((x**2).sum())
            truth += float((r**2).sum())
        worst = max(worst, float(np.nan_to_num(gap, nan=FAR, posinf=FAR).max(initial=0.0)))
        largest = max(largest, float(np.nan_to_num(np.abs(r), nan=FAR, posinf=FAR).max(initial=0.0)))
        count += x.size
    both = lengths * truth
    return Distance(relative_l2=_ratio(difference, truth) if count else FAR, max_abs=worst, largest=largest,
                    cosine=across / sqrt(both) if isfinite(across) and isfinite(both) and both > 0 else 0.0)


def judged(name: str, observed: float, tolerance: float, source: str, detail: str = "") -> Check:
    """The check that `observed` is at most `tolerance`. It fails, and stays finite, when either is not a number."""
    sound = isfinite(observed) and isfinite(tolerance)
    return Check(name=name, tolerance=tolerance if isfinite(tolerance) else 0.0, source=source,
                 observed=observed if isfinite(observed) else FAR, passed=sound and observed <= tolerance,
                 detail=detail)


def margin_error(logits: Array, reference: Array) -> float:
    """Largest error, over rows of [tokens, vocabulary], of the margin between the reference's two likeliest tokens.

    NaN when a value is not a number.
    """
    best = np.argpartition(reference, -2, axis=1)[:, -2:]
    ours, theirs = np.take_along_axis(logits, best, 1), np.take_along_axis(reference, best, 1)
    with np.errstate(invalid="ignore"):
        return float(np.abs((ours[:, 1] - ours[:, 0]) - (theirs[:, 1] - theirs[:, 0])).max())


def _ratio(difference: float, truth: float) -> float:
    """sqrt(difference / truth)."""
    if difference == 0:
        return 0.0
    return sqrt(difference / truth) if isfinite(difference) and truth > 0 else FAR
