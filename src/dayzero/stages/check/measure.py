"""How far two sets of values are apart."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from dayzero.runtime.dumps import Array, Sketch

_FAR = sys.float_info.max
"""Stands for a distance that is not a number: JSON has neither infinities nor NaN."""


@dataclass(frozen=True)
class Distance:
    """x against the reference r, over all pairs together."""

    relative_l2: float
    """||x - r|| / ||r||."""
    max_abs: float
    """Largest |x - r|."""
    cosine: float
    """Cosine of the angle between x and r."""
    largest: float
    """Largest |r|."""


def distance(pairs: Iterable[tuple[Array | Sketch, Array | Sketch]]) -> Distance:
    """Of all (x, r), each of one shape. Values that are not numbers are infinitely far. Raises ValueError on shapes."""
    difference = across = lengths = truth = worst = largest = 0.0
    for values, reference in pairs:
        if values.shape != reference.shape:
            raise ValueError(f"{values.shape} is compared with {reference.shape}")
        x, r = values.astype(np.float64), reference.astype(np.float64)
        gap = np.abs(x - r)
        difference += float((gap**2).sum())
        across += float((x * r).sum())
        lengths += float((x**2).sum())
        truth += float((r**2).sum())
        worst = max(worst, float(np.nan_to_num(gap, nan=_FAR, posinf=_FAR).max(initial=0.0)))
        largest = max(largest, float(np.abs(r).max(initial=0.0)))
    return Distance(relative_l2=_ratio(difference, truth), max_abs=worst, largest=largest,
                    cosine=across / sqrt(lengths * truth) if isfinite(lengths) and lengths * truth > 0 else 0.0)


def margin_error(logits: Array, reference: Array) -> float:
    """Largest error, over rows of [tokens, vocabulary], of the margin between the reference's two likeliest tokens."""
    best = np.argpartition(reference, -2, axis=1)[:, -2:]
    ours, theirs = np.take_along_axis(logits, best, 1), np.take_along_axis(reference, best, 1)
    return float(np.abs((ours[:, 1] - ours[:, 0]) - (theirs[:, 1] - theirs[:, 0])).max())


def _ratio(difference: float, truth: float) -> float:
    """sqrt(difference / truth)."""
    if difference == 0:
        return 0.0
    return sqrt(difference / truth) if isfinite(difference) and truth > 0 else _FAR
