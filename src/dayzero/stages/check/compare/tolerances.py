"""What a place may differ by: what correct runs differ by there, and no less than the precision's floor.

Every place has its own noise, so depth is in it: what earlier layers add is what the correct runs show. Without correct
runs noise is estimated from the roundoff of the precision and grows with the square root of the layers passed, as
independent roundings do; it is then called estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log2, sqrt
from statistics import median
from typing import NamedTuple

from dayzero.floats import ROUNDOFF
from dayzero.stages.check.measure import FAR

from .measuring import Measured, Seen
from .metrics import coarser
from .places import layer_of, template

FLOORS = {"BF16": 1e-2, "F16": 1e-3, "F32": 1e-5, "F64": 1e-12, "F8_E4M3": 5e-2, "F8_E5M2": 1e-1}
"""Usual constant limits of relative L2; of F32 and F64 a multiple of the roundoff."""
FACTOR, ROW_FACTOR, CHANNEL_FACTOR, SCALE_FACTOR, GAP_FACTOR = 4.0, 6.0, 6.0, 6.0, 4.0
"""How many times the noise passes."""
_ROW, _CHANNEL, _TYPICAL = 8.0, 8.0, 2.0
"""How much larger than all values' the error of a row, a channel or a median row may be where nothing was measured."""
_GROWTH = 4.0
"""Roundoffs by which a layer's values differ, for the estimate."""
_SCALE = 0.1
"""Part of the floor that a common factor may be: roundings cancel in it."""
TOUCHED_ROWS, TOUCHED = 16, 0.5
"""Rows that attend to flipped ones of which a median is taken, and what share of the flipped ones' error it may be."""
_SIGMAS = 8.0
_BEYOND, _AGREE = 32.0, 0.9
"""How many times further off than disturbed inputs a correct run's logits are not, and the share of likeliest tokens
that it keeps at least (docs/check.md says what was measured)."""
SHARE, SHARE_FACTOR = 0.05, 4.0
FLIPS, FLIPS_FACTOR, _FLIPS_SHARE = 8, 4.0, 1e-3
"""Rows, times the correct runs' and share of all rows that may flip beside what is explained one by one."""
_INPUTS = ("F64", "F32", "F16", "BF16")
"""Whose roundoff inputs are disturbed by."""


class Tolerance(NamedTuple):
    """Of one place."""

    relative_l2: float
    row: float
    channel: float
    scale: float
    typical: float
    """Of the median row, where others attend to rows that chose other experts."""
    noise: float
    source: str


class Noise:
    """Noise of every place, from the correct runs or estimated.

    A correct run has the roundoff of its dtype, or that by which its inputs were perturbed: what its first place
    differs by tells. What it shows is taken in proportion to the roundoff of the candidate, as small errors are.
    """

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.dtype = precision([each.seen for each in measured])
        """Of the candidate or the reference, the coarser: what a place differs by comes from all that ran before it."""
        count = max((len(each.noise) for each in measured), default=0)
        self.scales = [self._scale([each.noise[number] for each in measured if each.noise]) for number in range(count)]
        """What the noise of each correct run is multiplied by."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for each in measured:
            if (worst := self._worst(each, 0)) is not None:
                groups.setdefault(_alike(each), []).append(worst)
        self._typical = {key: median(values) for key, values in groups.items()}

    def tolerance(self, each: Measured) -> Tolerance:
        """Of a place that was compared."""
        floor = FLOORS[self.dtype]
        worst = self._worst(each, 0)
        if worst is None:
            noise = estimated(self.dtype, layer_of(each.address.name))
            limit = max(FACTOR * noise, floor)
            words = f"estimated: {FACTOR:g} times {noise:.2g}, which grows with depth from the roundoff of {self.dtype}"
            return Tolerance(limit, _ROW * limit, _CHANNEL * limit, limit, _TYPICAL * limit, noise, words)
        noise = max(worst, self._typical[_alike(each)] / 2)
        rows, channels, scale = (self._worst(each, which) or 0.0 for which in (1, 2, 3))
        scale = max(scale, noise / sqrt(max(1, each.seen.clean.rows if each.seen else 1)))
        limit = max(FACTOR * noise, floor)
        words = (f"{FACTOR:g} times the noise of correct runs here, {noise:.2g}" if limit > floor
                 else f"floor of {self.dtype}; noise of correct runs here {noise:.2g}")
        return Tolerance(limit, max(ROW_FACTOR * rows, limit), max(CHANNEL_FACTOR * channels, limit),
                         max(SCALE_FACTOR * scale, floor * _SCALE), max(FACTOR * self._typical_row(each), limit), noise,
                         words)

    def _typical_row(self, each: Measured) -> float:
        """Median row of correct runs. What attends to rows with other experts is off by what a flip does and not by
        roundings, so that is not taken in proportion."""
        seen = [(one, scale) for one, scale in zip(each.noise, self.scales, strict=False) if one is not None]
        return max([one.clean.typical * scale for one, scale in seen] + [one.touched.typical for one, _ in seen])

    def _scale(self, seen: Sequence[Seen | None]) -> float:
        own = precision(seen)
        first = next((one.clean.relative_l2 for one in seen if one is not None and one.clean.relative_l2 > 0), 0.0)
        if first:
            near = min(_INPUTS, key=lambda each: abs(log2(first / ROUNDOFF[each]) + 1))  # RMS: about half the largest
            own = coarser(own, near)
        return ROUNDOFF[self.dtype] / ROUNDOFF[own]

    def _worst(self, each: Measured, which: int) -> float | None:
        """Largest relative L2 (0), of a row (1) or channel (2) of the correct runs; None when there is none."""
        found = [value * scale for seen, scale in zip(each.noise, self.scales, strict=False)
                 if seen is not None and (value := _of(seen, which)) is not None and value < FAR]
        return max(found, default=None)


def doubtful(measured: Sequence[Measured], noise: Noise, folders: Sequence[str]) -> list[str]:
    """Correct runs in the candidate's precision that may be none: their logits are much further off than disturbed
    inputs explain, and they choose other tokens. `folders`: of all correct runs."""
    own = [precision([each.noise[number] for each in measured if each.noise]) == noise.dtype
           for number in range(len(noise.scales))]
    told = {}
    for each in measured:
        runs = [(number, one) for number, one in enumerate(each.noise) if one is not None and one.choices.rows]
        explained = max((one.clean.relative_l2 * noise.scales[number] for number, one in runs if not own[number]),
                        default=0.0)
        for number, one in runs:
            same = one.choices.same / one.choices.rows
            if own[number] and 0 < _BEYOND * explained < one.clean.relative_l2 and same < _AGREE:
                told[folders[number]] = (
                    f"{folders[number]} has logits {one.clean.relative_l2 / explained:.0f} times further off than "
                    f"disturbed inputs explain, and the same likeliest token in {same:.0%} of the rows only: if it is "
                    "not correct, what it does wrong passes")
    return list(told.values())


def precision(seen: Sequence[Seen | None]) -> str:
    """The dtype in which most places were computed."""
    dtypes = Counter(one.dtype for one in seen if one is not None and one.dtype in FLOORS)
    return max(dtypes, key=dtypes.__getitem__, default="F32")


def estimated(dtype: str, layer: int | None) -> float:
    """Relative L2 of a correct run without any: each layer adds some roundoffs, independent of those before."""
    return _GROWTH * ROUNDOFF.get(dtype, ROUNDOFF["F32"]) * sqrt(1 + (layer or 0))


def _alike(each: Measured) -> tuple[str, str, str]:
    return template(each.address.name), each.address.what, each.address.slot


def _of(seen: Seen, which: int) -> float | None:
    """Relative L2 (0), of a row (1), a channel (2), or of a common factor (3); where all rows attend to flipped ones,
    their median for the first. None: there are no rows."""
    clean = seen.clean
    if not clean.values:
        return seen.touched.typical if seen.touched.values and not which else None
    return (clean.relative_l2, clean.row, clean.channel, clean.scale)[which]


def gap_tolerance(moved: Sequence[float], dtype: str, rms: float, layer: int | None) -> tuple[float, str]:
    """Largest gap of scores that noise explains, and where that comes from. `moved`: the largest change of a score in
    each of the correct runs, in proportion; a gap is made of two."""
    if moved:
        return GAP_FACTOR * 2 * max(moved), f"{GAP_FACTOR:g} times twice the largest change of a score in correct runs"
    noise = estimated(dtype, layer)
    return _SIGMAS * FACTOR * noise * rms, f"estimated: {_SIGMAS * FACTOR:g} times the noise of the scores, {noise:.2g}"


def flips_tolerance(rates: Sequence[float], rows: int) -> int | None:
    """Rows of which so many may flip, by the share that does in each of the correct runs, in proportion: those are few,
    so that some more are no news. None: there is no correct run."""
    return int(FLIPS_FACTOR * max(rates) * rows + FLIPS + _FLIPS_SHARE * rows) if rates else None


def share_tolerance(noise: Sequence[float]) -> tuple[float, str]:
    """Largest share of other choices where no scores were recorded. `noise`: of each correct run, in proportion."""
    limit = max(SHARE_FACTOR * max(noise, default=0.0), SHARE)
    if not noise:
        return limit, f"no scores and no correct run were recorded: at most {SHARE:g} of the choices"
    return limit, f"no scores: {SHARE_FACTOR:g} times what correct runs choose otherwise, at least {SHARE:g}"
