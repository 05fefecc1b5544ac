"""What is known about the axes of two arrays, and their difference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Facts:
    """All of it may be left out."""

    heads: tuple[int, ...] = ()
    """Numbers of heads that the channels may be made of."""
    ranks: tuple[int, ...] = (2, 4, 8, 16)
    """Numbers of ranks that the channels may have been cut for."""
    blocks: tuple[int, ...] = (256, 128, 64, 32, 16)
    """Sizes of quantisation blocks."""
    experts: Array | None = None
    """[rows, top k]: experts that each row was sent to."""
    positions: Array | None = None
    """[rows]: position of each in its sequence."""
    sequences: Array | None = None
    """[rows]: number of its sequence."""
    decoded: Array | None = None
    """[rows]: whether the token was run alone, with a cache of those before it."""


class Difference:
    """Of two arrays [rows, ...]; in double precision, without cells that are no numbers in either."""

    def __init__(self, reference: Array, candidate: Array) -> None:
        rows = len(reference)
        self.r = reference.reshape(rows, -1).astype(np.float64)
        self.x = candidate.reshape(rows, -1).astype(np.float64)
        finite = np.isfinite(self.r) & np.isfinite(self.x)
        self.odd = ~np.isfinite(self.x) & np.isfinite(self.r)
        """[rows, width]: no numbers, where the reference has some."""
        self.r, self.x = np.where(finite, self.r, 0.0), np.where(finite, self.x, 0.0)
        self.d = self.x - self.r
        self.energy = float((self.d**2).sum())
        """Sum of squares of the difference."""

    @cached_property
    def by_row(self) -> Array:
        """[rows]: energy of each."""
        return np.asarray((self.d**2).sum(1))

    @cached_property
    def by_channel(self) -> Array:
        """[width]: energy of each."""
        return np.asarray((self.d**2).sum(0))

    @property
    def width(self) -> int:
        """Channels."""
        return int(self.d.shape[1])

    def left(self, other: Array) -> float:
        """Share of the energy that is explained by an array that the candidate might be; below 0 when it is worse."""
        return float(1.0 - ((self.x - other) ** 2).sum() / self.energy)
