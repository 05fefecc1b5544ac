"""Limits of a target: which layouts keep to them, and how near the others come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dayzero.schema import Bound, Layout, Limits
from dayzero.units import format_seconds

from .pareto import Column, Mask

Figure = Literal["ttft_s", "tpot_s", "devices"]
FIGURES: dict[Figure, str] = {"ttft_s": "TTFT", "tpot_s": "TPOT", "devices": "devices"}
"""What can be limited, and its name in sentences."""
Figures = Mapping[str, NDArray[Any]]
"""Columns by the names of `FIGURES`, all of one length."""


def stated(limits: Limits) -> dict[Figure, float]:
    """The limits that are stated."""
    return {name: float(most) for name in FIGURES if (most := getattr(limits, name)) is not None}


def excess(limits: Limits, figures: Figures) -> Column:
    """For each row the largest of figure / limit: at most 1 where it keeps to all. 0 without limits."""
    length = len(next(iter(figures.values())))
    with np.errstate(over="ignore"):  # beyond all numbers: infinitely far over
        ratios = [np.asarray(figures[name], dtype=np.float64) / most for name, most in stated(limits).items()]
    return np.max(ratios, axis=0) if ratios else np.zeros(length)


def within(limits: Limits, figures: Figures) -> Mask:
    """Which rows keep to all limits."""
    return excess(limits, figures) <= 1


def bounds(limits: Limits, figures: Figures, layouts: Sequence[Layout], fits: Mask) -> tuple[Bound, ...]:
    """Each stated limit: how many of the layouts that have room meet it, and the one that comes nearest."""
    return tuple(_bound(name, most, figures[name], layouts, fits) for name, most in stated(limits).items())


def _bound(name: Figure, most: float, column: NDArray[Any], layouts: Sequence[Layout], fits: Mask) -> Bound:
    rows = np.flatnonzero(fits)
    if not rows.size:
        return Bound(figure=name, limit=most, met_by=0, nearest=None, layout=None)
    row = int(rows[np.argmin(column[rows])])
    return Bound(figure=name, limit=most, met_by=int((column[rows] <= most).sum()), nearest=float(column[row]),
                 layout=layouts[row])


def amount(name: str, value: float) -> str:
    """`12 ms`, or `8` devices."""
    return f"{value:,.0f}" if name == "devices" else format_seconds(value)


def missed(limits: Limits, figures: Mapping[str, float]) -> str:
    """`TPOT 18 ms, 20% over 15 ms`: every limit that is broken; empty if all are kept."""
    return "; ".join(f"{FIGURES[name]} {amount(name, figures[name])}, {figures[name] / most - 1:.0%} over "
                     f"{amount(name, most)}" for name, most in stated(limits).items() if figures[name] > most)


def verdict(found: Sequence[Bound]) -> str:
    """One sentence about limits that no single layout keeps to: the first that none meets, or that they are met one by
    one only."""
    for bound in found:
        if not bound.met_by and bound.nearest is not None and bound.layout is not None:
            name, value, most = FIGURES[bound.figure], bound.nearest, bound.limit
            return (f"No layout that fits meets {name} {amount(bound.figure, most)}: {bound.layout.text} is nearest "
                    f"with {amount(bound.figure, value)}, {value / most - 1:.0%} over.")
    return "Each limit is met by some layout that fits, but no layout meets all of them."
