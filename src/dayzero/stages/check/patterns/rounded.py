"""Values that were rounded to few levels with a scale for each block: what quantisation makes of weights, and of rows
of an embedding. Levels are found on the values, whatever the format is called and however its scales were chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from dayzero.floats import cast
from dayzero.schema.located import Pattern

from .facts import Array, Difference

BLOCKS = (256, 128, 64, 32, 16)
"""Values that may share a scale, beside a whole row."""
_ROWS = 48
_FITS = 0.97
"""Share of the blocks that have to lie on levels."""
_DOUBT = 0.25
"""Of a step: values whose own rounding may be more say nothing."""
_SLACK = 1e-3
_TELLING, _FEWEST = 6, 8
"""Values of a block that say something, at least, and blocks."""
_FEW, _LESS = 24, 0.1
"""Blocks that are tried first, and by how much fewer of these may fit."""
_EIGHT = range(64, 129)
"""Steps from zero to the largest magnitude, of 8 bits."""
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_OCTAVES = 13
_ERROR = (0.02, 0.6)
"""Mean square of an error in steps: 1/12 of rounding to nearest, more where scales are calibrated."""
_NEAREST = 0.95


class Rounded(NamedTuple):
    """How values were rounded."""

    words: str
    """Levels, such as `16 levels`."""
    block: int
    """Values that share a scale; 0: a whole row or more."""
    nearest: bool
    """Whether every value is the level nearest to the reference's."""
    share: float
    """Part of the error's energy that lies in blocks of such levels."""

    @property
    def told(self) -> str:
        """`16 levels in blocks of 32`."""
        return f"{self.words} {f'in blocks of {self.block}' if self.block else 'with one scale for a row or more'}"


class _Grid(NamedTuple):
    """Levels of blocks [blocks, values]."""

    words: str
    fits: Array
    """[blocks]"""
    steps: Array
    """[blocks, values]: distance of the levels around each value."""


_Fit = Callable[[Array, float], _Grid]
"""Called with blocks and the relative error with which their values are kept."""


def rounded(difference: Difference) -> Iterator[Pattern]:
    """The pattern, where the candidate lies on levels that explain what it differs by."""
    found = rounding(difference.r, difference.x)
    if found is not None:
        how = ("each the nearest to the reference's value" if found.nearest else
               "not always the nearest, as with calibrated scales")
        yield Pattern(name="quantisation", explained=found.share,
                      words=f"values lie on {found.told}, {how}: noise of quantised weights")


def rounding(reference: Array, candidate: Array) -> Rounded | None:
    """How [rows, width] of the candidate are the reference's values rounded; None when they are not. The fewest levels
    that fit count, then the largest blocks."""
    chosen = np.linspace(0, max(0, len(reference) - 1), min(len(reference), _ROWS)).astype(int)
    r, x = reference[chosen].astype(np.float64), candidate[chosen].astype(np.float64)
    if not x.size or (x == r).all() or not np.isfinite(x).all():
        return None
    unit, width = _roundoff(x), x.shape[1]
    parts = [each for size in (width, *(size for size in BLOCKS if size < width))
             if (each := _Part.of(x, r, 0 if size == width else size, size)) is not None]
    return next((found for fit in _FITS_OF for part in parts if (found := part.explained(fit, unit)) is not None), None)


class _Part(NamedTuple):
    """Rows in blocks of one size, [blocks, values]."""

    block: int
    x: Array
    r: Array

    @classmethod
    def of(cls, x: Array, r: Array, block: int, size: int) -> _Part | None:
        """None when there are too few blocks that are not all one value."""
        ours, theirs = _blocks(x, size), _blocks(r, size)
        moving = np.ptp(ours, axis=1) > 0
        return None if moving.sum() < (_FEWEST if block else 1) else cls(block, ours[moving], theirs[moving])

    def explained(self, fit: _Fit, unit: float) -> Rounded | None:
        """By levels of a kind; a few blocks are tried first."""
        few = self.x[:: max(1, len(self.x) // _FEW)]
        if len(few) < len(self.x) and fit(few, unit).fits.mean() < _FITS - _LESS:
            return None
        return _explains(fit(self.x, unit), self.x, self.r, unit, self.block)


def _explains(grid: _Grid, x: Array, r: Array, unit: float, block: int) -> Rounded | None:
    """Whether errors are as large as steps make them: the reference may lie on coarser levels of its own."""
    if grid.fits.mean() < _FITS:
        return None
    steps = np.where(grid.fits[:, None], grid.steps, np.inf)
    errors = np.abs(x - r) / steps
    mean = float((errors[grid.fits] ** 2).mean())
    if not _ERROR[0] <= mean <= _ERROR[1]:
        return None
    near = errors[grid.fits] <= 0.5 + _SLACK + unit * np.abs(x[grid.fits]) / steps[grid.fits]
    energy = (x - r) ** 2
    return Rounded(grid.words, block, bool(near.mean() >= _NEAREST),
                   float(energy[grid.fits].sum() / max(float(energy.sum()), 1e-300)))


def _blocks(values: Array, size: int) -> Array:
    """[blocks, size], of each row as many as are whole."""
    whole = values.shape[1] // size * size
    return np.ascontiguousarray(values[:, :whole]).reshape(-1, size)


def _roundoff(x: Array) -> float:
    """Largest relative error with which the values are kept."""
    single = x.astype(np.float32)
    return next((unit for dtype, unit in (("BF16", 2.0**-8), ("F16", 2.0**-11))
                 if (cast(single, dtype) == single).all()), 2.0**-24)


def _even(x: Array, unit: float, bits: int) -> _Grid:
    """Even steps from the smallest to the largest value of each block, no more than `bits` can tell apart."""
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    counts = np.zeros(len(x), int)
    ends = np.abs(low) + np.abs(high)
    for count in range(1, 2**bits):
        step = (high - low) / count
        places = (x - low) / step
        doubt = unit * (np.abs(x) + np.abs(low) + places / count * ends) / step + _SLACK
        counts = np.where((counts == 0) & _on(places, doubt), count, counts)
    return _Grid(f"{2**bits} levels", counts > 0, (high - low) / np.maximum(counts, 1)[:, None])


def _on(places: Array, doubt: Array) -> Array:
    """[blocks]: whether enough values say something, and all of these are whole."""
    telling = doubt <= _DOUBT
    near = np.abs(places - np.rint(places)) <= doubt
    enough = telling.sum(1) >= min(_TELLING, places.shape[1])
    return np.asarray(enough & (near | ~telling).all(1))


def _best(x: Array, tries: list[float], fit: Callable[[Array], tuple[Array, Array, Array]], words: str) -> _Grid:
    """Of scales with which the largest magnitude is each of `tries`, the first that fits. `fit`: of magnitudes in
    units of the scale (places on levels, doubt, gaps)."""
    largest = np.abs(x).max(1, keepdims=True)
    fits, steps = np.zeros(len(x), bool), np.ones_like(x)
    for top in tries:
        scale = largest / top
        places, doubt, gaps = fit(np.abs(x) / scale)
        new = ~fits & _on(places, doubt)
        steps = np.where(new[:, None], gaps * scale, steps)
        fits |= new
    return _Grid(words, fits, steps)


def _symmetric(x: Array, unit: float) -> _Grid:
    """8 bits around zero."""
    def fit(y: Array) -> tuple[Array, Array, Array]:
        return y, 2 * unit * y + _SLACK, np.ones_like(y)
    return _best(x, [float(top) for top in _EIGHT], fit, "256 levels")


def _table(x: Array, unit: float) -> _Grid:
    """4-bit floating point with 2 bits of exponent (OCP Microscaling Formats 1.0, e2m1)."""
    gaps_of = np.diff(_FP4)

    def fit(y: Array) -> tuple[Array, Array, Array]:
        below = np.clip(np.searchsorted(_FP4, y, side="right") - 1, 0, len(gaps_of) - 1)
        gaps = gaps_of[below]
        return (y - _FP4[below]) / gaps, 2 * unit * y / gaps + _SLACK, gaps
    return _best(x, [6.0, 4.0, 3.0], fit, "16 levels of a 4-bit float")


def _floats(x: Array, unit: float, bits: int) -> _Grid:
    """Floating point with so many bits of fraction; what is far below the largest value says nothing."""
    def fit(y: Array) -> tuple[Array, Array, Array]:
        gaps = 2.0 ** (np.floor(np.log2(np.maximum(y, 1e-300))) - bits)
        small = y < 2.0**-_OCTAVES
        doubt = np.where(small, 1.0, 2 * unit * 2.0 ** (bits + 1) + _SLACK)
        return np.where(small, 0.0, y / gaps), doubt, np.where(small, 2.0 ** (-_OCTAVES - bits), gaps)
    tops = [1 + number / 2**bits for number in range(2**bits)]
    return _best(x, tops, fit, f"levels of an 8-bit float with {bits} bits of fraction")


_FITS_OF: tuple[_Fit, ...] = (*(partial(_even, bits=bits) for bits in (2, 3, 4)), _table, *(
    partial(_even, bits=bits) for bits in (5, 6)), _symmetric, *(partial(_floats, bits=bits) for bits in (2, 3)))
"""The fewest levels first."""
