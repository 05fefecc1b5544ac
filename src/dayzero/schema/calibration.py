"""What a user's own measurements say about the figures that times are predicted with."""

from __future__ import annotations

import math

from dayzero.errors import TargetError

from .base import Noun


class Calibration(Noun, frozen=True, kw_only=True):
    """Factors on times, by what takes them; fitted to a table of measured points, and pulled towards 1. Raises
    TargetError for what no table of points gives."""

    source: str
    """The table."""
    rows: int
    """Measurements that were fitted."""
    factors: dict[str, float]
    """Cause -> how much longer it takes than with the shipped figures; what is not named takes as long."""
    tpot: tuple[float, float] | None = None
    """Factors around the time between tokens that nine of ten measurements lay between; None: too few to tell."""
    ttft: tuple[float, float] | None = None
    """The same around the time to the first token."""
    errors: dict[str, float] = {}
    """Mean relative errors before and after, and with rows left out of the fit."""

    def __post_init__(self) -> None:
        figures = [*self.errors.values(), *(self.tpot or ()), *(self.ttft or ())]
        if self.rows < 0 or not all(map(math.isfinite, figures)):
            raise TargetError("a calibration with figures that are none", "make it again with `dayzero calibrate`")
