"""Tables of cosines and sines that turn by other angles: what a rotary embedding makes, which has no weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.schema.located import Pattern

from .facts import Array, Difference, Facts

TABLE = "rotary table"
_FEWEST = 4
"""Positions with one on either side from which angles are taken."""
_LEFT = 1e-3
"""Share of a table's energy that may be left, of which roundings to bf16 leave a hundredth."""
_SEEN = 1e-2
"""Angles of one step that are told from roundings of their cosine."""
_NEAR = 0.02


def angles(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Both turn evenly from one position to the next, some channels by another angle."""
    middle = _middle(facts)
    if len(middle) < _FEWEST:
        return
    r, x = _steps(difference.r, middle), _steps(difference.x, middle)
    if r is None or x is None:
        return
    other = np.abs(x - r) > _NEAR * np.maximum(r, _SEEN)
    share = float(difference.by_channel[other].sum() / difference.energy)
    bases = _base(r), _base(x)
    told = f" (as of a base of {bases[1]:.3g} where the reference has {bases[0]:.3g})" if all(bases) else ""
    yield Pattern(name=TABLE, explained=share, words=f"{int(other.sum())} of {difference.width} channels are "
                  f"cosines or sines of other angles: another rotary base, scaling or rule, and no weight{told}")


def _middle(facts: Facts) -> Array:
    """Rows between two others, which are of the positions before and behind theirs in the same sequence."""
    if facts.positions is None or len(facts.positions) <= _FEWEST:
        return np.empty(0, dtype=np.int64)
    follows = np.diff(facts.positions) == 1
    if facts.sequences is not None:
        follows &= np.diff(facts.sequences) == 0
    return np.flatnonzero(follows[:-1] & follows[1:]) + 1


def _steps(table: Array, middle: Array) -> Array | None:
    """[channels] of the angle from one position to the next, by f(p + 1) + f(p - 1) = 2 cos(angle) f(p), which holds
    for a cosine, a sine and all that is made of one angle; None when it does not hold."""
    here, around = table[middle], table[middle + 1] + table[middle - 1]
    size = (here**2).sum(0)
    twice = np.divide((here * around).sum(0), size, out=np.full(len(size), 2.0), where=size > 0)
    if ((around - twice * here) ** 2).sum() > _LEFT * size.sum() or not size.any():
        return None
    found: Array = np.arccos(np.clip(twice / 2, -1.0, 1.0))
    return found if (found > _SEEN).any() else None


def _base(steps: Array) -> float | None:
    """b, where the angles are b^(-2 i / d) for the pairs i of d channels, in one of the orders in which tables have
    them; None when they are not, as when they are scaled."""
    width, count = len(steps), np.arange(len(steps))
    for powers in (2 * (count % max(1, width // 2)) / width, count // 2 * 2 / width, count / width):
        used = (steps > _SEEN) & (powers > 0)
        if used.sum() < 2:
            continue
        logs = -np.log(steps[used])
        slope = float((logs * powers[used]).sum() / (powers[used] ** 2).sum())
        if (np.abs(logs - slope * powers[used]) < _NEAR).all() and np.abs(steps[powers == 0] - 1).max() < _NEAR:
            return float(np.exp(slope))
    return None
