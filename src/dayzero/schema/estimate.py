"""A predicted figure with its interval."""

from __future__ import annotations

from .base import Noun


class Estimate(Noun, frozen=True, kw_only=True):
    """A predicted figure with the interval that it should lie in."""

    value: float
    """Best guess."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    unit: str
    """s, tokens/s, B ..."""
    source: str
    """Measured, datasheet or formula, by the name that docs/numbers.md gives it."""
