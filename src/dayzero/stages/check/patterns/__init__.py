"""What the difference of two arrays looks like: which channels, heads, experts, ranks, blocks, positions or sequences
are hit, or what was done to the values. numpy only.

    facts     what is known about the axes
    subsets   which indices of an axis hold the error
    channels  what a set of channels is       rows      what a set of rows is
    changes   factors, offsets, roundings     moves     permutations and shifts
    rounded   few levels with a scale for each block
    angles    tables of rotary embeddings     numbers   values that are no numbers
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.schema.located import Pattern

from .angles import TABLE, angles
from .changes import changes
from .channels import channels
from .facts import Array, Difference, Facts
from .moves import moves
from .numbers import numbers
from .rounded import Rounded, rounded, rounding
from .rows import rows

__all__ = ["TABLE", "Facts", "Rounded", "describe", "rounding"]

_PLAIN, _LESS = ("channels", "rows"), 0.05
"""What says least is told before others only when it explains more by so much."""
ENOUGH = 0.5
"""A pattern is told when it explains more than this share of the error's energy."""


def describe(reference: Array, candidate: Array, *, facts: Facts | None = None) -> tuple[Pattern, ...]:
    """Patterns of two arrays [rows, ...] of one shape, the best first; none when they are equal or have none.

    Raises ValueError for other shapes.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"{reference.shape} and {candidate.shape} are not one shape")
    if not reference.size:
        return ()
    difference = Difference(np.asarray(reference), np.asarray(candidate))
    found = [each for each in _all(difference, facts or Facts()) if each.explained > ENOUGH]
    return tuple(sorted(found, key=lambda each: (each.name in _PLAIN) * _LESS - round(each.explained, 2)))


def _all(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """In the order in which those that explain alike are told."""
    yield from numbers(difference, facts)
    if difference.energy <= 0:
        return
    yield from rounded(difference)
    yield from moves(difference, facts)
    yield from angles(difference, facts)
    yield from channels(difference, facts)
    yield from rows(difference, facts)
    yield from changes(difference)
