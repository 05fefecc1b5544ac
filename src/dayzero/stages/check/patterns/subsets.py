"""Which indices of an axis hold the error, and what set they are."""

from __future__ import annotations

import numpy as np

from .facts import Array

_GAP = 10.0
"""The least of what is hit has so many times the error of the most of what is not."""
_SHARE = 0.9
NARROW = 8
"""Channels of the narrowest head that is told."""
_MOST = 0.6


def hit(energies: Array, sizes: Array, most: float = _MOST) -> Array | None:
    """Indices that hold nine tenths of the energy and stand out from all others; None when none do, or more than the
    share `most` of all. `sizes`: energies of the reference there, to which they are taken relative."""
    least = max(float(sizes.mean()) * 1e-4, 1e-300)
    relative = energies / np.maximum(sizes, least)
    order = np.argsort(-relative, kind="stable")
    ranked = np.maximum(relative[order], 1e-300)
    count = len(ranked)
    if count < 2 or ranked[0] <= 1e-300:
        return None
    end = min(count - 1, max(1, int(most * count)))
    with np.errstate(over="ignore"):  # beyond all numbers is a gap, too
        gaps = ranked[:end] / ranked[1:end + 1]
    shares = np.cumsum(energies[order])[:end] / max(float(energies.sum()), 1e-300)
    gaps = np.where(shares > _SHARE, gaps, 0.0)
    best = int(np.argmax(gaps))
    if gaps[best] < _GAP:
        return None
    return np.asarray(np.sort(order[:best + 1]))


def is_range(indices: Array) -> bool:
    """Whether they follow each other without a hole."""
    return len(indices) > 0 and int(indices[-1]) - int(indices[0]) + 1 == len(indices)


def step(indices: Array, size: int) -> int:
    """n when they are every n-th of the whole axis, n > 1; else 0."""
    if len(indices) < 3:
        return 0
    gaps = np.diff(indices)
    every = int(gaps[0])
    if every > 1 and (gaps == every).all() and indices[0] < every and indices[-1] + every >= size:
        return every
    return 0


def groups(indices: Array, count: int, size: int) -> list[int] | None:
    """Numbers of the groups, when an axis of `size` in `count` equal groups is hit in whole groups and not in all; a
    group counts as hit when most of it is."""
    if count < 2 or size % count or size // count < NARROW:
        return None
    width = size // count
    full = np.bincount(indices // width, minlength=count)
    chosen = np.flatnonzero(full)
    if len(chosen) == count or (full[chosen] < 0.8 * width).any():
        return None
    return [int(each) for each in chosen]


def told(numbers: list[int]) -> str:
    """`3`, `3 and 5`, `3 to 7`, `1, 2, 9 and 4 more`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{numbers[0]} to {numbers[-1]}"
    if len(numbers) > 4:
        return f"{', '.join(map(str, numbers[:3]))} and {len(numbers) - 3} more"
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))
