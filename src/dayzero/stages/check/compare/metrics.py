"""How far aligned values are apart: what one pass over both, chunk by chunk, can tell.

A chunk of 64 Ki values is taken through the cache once: the difference d = x - r, and the sums of d d, d r and r r of
each row and column; x x = r r + 2 d r + d d and x r = r r + d r follow. Sums are formed in single precision over a row
and in double precision over rows; where single precision overflows, underflows or meets what is no number, the chunk is
done again in double.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.floats import ROUNDOFF, cast
from dayzero.stages.check.measure import FAR

CHUNK = 1 << 16
"""Values that are worked on at a time: with what is made of them they stay in the cache."""
Values = NDArray[Any]
"""F32 or F64."""
_SMALL, _LARGE = 1e-24, 1e30
"""Sums of squares of a chunk outside of these were not formed in single precision."""
_ULPS = 1 << 13
"""Values whose distance in ULPs is taken, evenly spaced."""
_BITS = {"BF16": ("<u4", 16), "F16": ("<u2", 0), "F32": ("<u4", 0)}


class Distance(NamedTuple):
    """x against the reference r."""

    values: int
    """Pairs of values."""
    rows: int
    """Rows."""
    relative_l2: float
    """||x - r|| / ||r||; FAR where it is no number."""
    row: float
    """Largest relative L2 of a row: over the larger of its own norm and a tenth of a mean row's."""
    typical: float
    """Median of these over rows: what single rows do does not show in it."""
    channel: float
    """As `row`, of a column."""
    scale: float
    """|<x - r, r>| / ||r||^2: a common factor. Roundings are independent of the values and cancel in it."""
    max_abs: float
    """Largest |x - r|."""
    cosine: float
    """Cosine of the angle between the two; 1 where both are zero."""
    rms: float
    """Root mean square of r."""
    own: float
    """Sum of the squares of x."""
    ulps: tuple[int, int, int]
    """Median, 99th percentile and largest distance in ULPs of the coarser dtype, over evenly spaced values."""
    lost: int
    """Values that are NaN or infinite in x and not, or otherwise, in r."""
    both: int
    """Values that are the same NaN or infinity in both; they take no part."""


def coarser(*dtypes: str) -> str:
    """The dtype with the largest roundoff; F32 where none is a floating one."""
    known = [each for each in dtypes if each in ROUNDOFF]
    return max(known, key=ROUNDOFF.__getitem__, default="F32")


def ulps(x: Values, r: Values, dtype: str) -> NDArray[np.int64]:
    """How many numbers of `dtype` lie between each two, after rounding both to it; F32's where it has no count."""
    kind, shift = _BITS.get(dtype, _BITS["F32"])
    return np.asarray(np.abs(_ordered(x, dtype, kind, shift) - _ordered(r, dtype, kind, shift)))


class Tally:
    """Sums over rows of one width that are seen chunk by chunk."""

    def __init__(self, dtype: str, width: int) -> None:
        self.width = max(1, width)
        self.count = self.lost = self.both = 0
        self.gap = self.own = self.truth = self.along = 0.0
        self.worst = 0.0
        self.ulps = Sample(dtype)
        self.columns = np.zeros((2, width))
        """Sum over rows of the squared difference, and of the reference's square, of each column."""
        self.rows: list[list[Values]] = [[], []]
        """The same two sums over columns of each row, chunk by chunk."""
        self._scratch: NDArray[np.float32] | None = None

    def add(self, x: Values, r: Values) -> None:
        """Two arrays [rows, width], F32 or F64. They are not changed."""
        step = max(1, CHUNK // self.width)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for start in range(0, len(x), step):
                self._chunk(x[start : start + step], r[start : start + step])

    def _chunk(self, x: Values, r: Values) -> None:
        self.count += x.size
        gap = self._difference(x, r)
        rows, (total, across, square) = _sums(gap, r)
        if not (_SMALL < square < _LARGE and (_SMALL < total < _LARGE or not (total or gap.any()))):
            x, r, gap = self._exactly(x, r)
            rows, (total, across, square) = _sums(gap, r)
        self.rows[0].append(rows[0])
        self.rows[1].append(rows[2])
        self.gap, self.along, self.truth = self.gap + total, self.along + across, self.truth + square
        self.own += square + 2 * across + total
        self.columns[1] += np.einsum("ij,ij->j", r, r)
        self.ulps.add(x, r)
        if total:
            self.columns[0] += np.einsum("ij,ij->j", gap, gap)
            self.worst = max(self.worst, float(gap.max()), -float(gap.min()))

    def _difference(self, x: Values, r: Values) -> Values:
        """x - r; of F32 in memory that is used again, which is in the cache."""
        if x.dtype != np.float32 or r.dtype != np.float32:
            return x - r
        if self._scratch is None or self._scratch.size < x.size:
            self._scratch = np.empty(x.size, np.float32)
        return np.subtract(x, r, out=self._scratch[: x.size].reshape(x.shape))

    def _exactly(self, x: Values, r: Values) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """In double precision, with 0 for both where one is no number."""
        wide_x, wide_r = x.astype(np.float64), r.astype(np.float64)
        sound = np.isfinite(x) & np.isfinite(r)
        if not sound.all():
            same = ~sound & ((x == r) | (np.isnan(x) & np.isnan(r)))
            self.both += int(same.sum())
            self.lost += int((~sound & ~same).sum())
            wide_x[~sound], wide_r[~sound] = 0.0, 0.0
        return wide_x, wide_r, wide_x - wide_r

    def distance(self) -> Distance:
        """Over all that was added."""
        both = sqrt(max(0.0, self.own)) * sqrt(self.truth)
        cosine = (self.truth + self.along) / both if both > 0 and isfinite(both) else float(self.own == self.truth)
        sound = self.count - self.lost - self.both
        rows = np.stack([np.concatenate([np.empty(0), *each]) for each in self.rows])
        apart = _shares(rows)
        return Distance(
            values=self.count, rows=rows.shape[1], own=self.own,
            relative_l2=FAR if self.lost or (self.both and not sound) else relative(self.gap, self.truth),
            row=float(apart.max(initial=0.0)), typical=_median(apart),
            scale=abs(self.along) / self.truth if self.truth > 0 and isfinite(self.along) else 0.0,
            channel=float(_shares(self.columns).max(initial=0.0)),
            max_abs=FAR if self.lost or not isfinite(self.worst) else self.worst, cosine=max(-1.0, min(1.0, cosine)),
            rms=sqrt(self.truth / sound) if sound and isfinite(self.truth) else 0.0, ulps=self.ulps.quantiles(),
            lost=self.lost, both=self.both)


class Sample:
    """Evenly spaced pairs of all that are seen: all of few, and of many no more than `_ULPS`."""

    def __init__(self, dtype: str) -> None:
        self._dtype, self._step, self._seen, self._held = dtype, 1, 0, 0
        self._pairs: list[tuple[Values, Values]] = []

    def add(self, x: Values, r: Values) -> None:
        """Two arrays of one shape; what is kept of them is copied."""
        first = -self._seen % self._step
        pair = x.reshape(-1)[first :: self._step].copy(), r.reshape(-1)[first :: self._step].copy()
        self._seen, self._held = self._seen + x.size, self._held + len(pair[0])
        self._pairs.append(pair)
        while self._held > _ULPS:
            kept = [np.concatenate(side)[::2] for side in zip(*self._pairs, strict=True)]
            self._pairs, self._held, self._step = [(kept[0], kept[1])], len(kept[0]), 2 * self._step

    def quantiles(self) -> tuple[int, int, int]:
        """Median, 99th percentile and largest distance in ULPs."""
        if not self._held:
            return 0, 0, 0
        x, r = (np.concatenate(side) for side in zip(*self._pairs, strict=True))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            apart = np.sort(ulps(x, r, self._dtype))
        median, high = (int(apart[min(len(apart) - 1, int(share * len(apart)))]) for share in (0.5, 0.99))
        return median, high, int(apart[-1])


NOTHING = Distance(values=0, rows=0, relative_l2=0.0, row=0.0, typical=0.0, channel=0.0, scale=0.0, max_abs=0.0,
                   cosine=1.0, rms=0.0, own=0.0, ulps=(0, 0, 0), lost=0, both=0)


def _shares(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """sqrt(gap / truth) of each of [2, n] sums, where a truth counts at least a hundredth of the mean one."""
    truth = np.maximum(sums[1], sums[1].mean() / 100 if sums.size else 0.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        shares = np.sqrt(np.where(sums[0] == 0, 0.0, sums[0] / truth))
    return np.nan_to_num(shares, nan=FAR, posinf=FAR)


def _median(values: NDArray[np.float64]) -> float:
    """0 of none; FAR where the middle ones are."""
    with np.errstate(over="ignore"):  # the mean of two of the largest numbers
        return min(FAR, float(np.median(values))) if values.size else 0.0


def relative(gap: float, truth: float) -> float:
    """sqrt(gap / truth) of two sums of squares; 0 when nothing differs, FAR when it is no number."""
    if gap == 0:
        return 0.0
    return sqrt(gap / truth) if isfinite(gap) and truth > 0 else FAR


def _sums(gap: Values, r: Values) -> tuple[list[Values], list[float]]:
    """Sums of gap gap, gap r and r r: over each row, and over all."""
    rows = [np.asarray(np.einsum("ij,ij->i", one, other)) for one, other in ((gap, gap), (gap, r), (r, r))]
    return rows, [float(each.sum(dtype=np.float64)) for each in rows]


def _ordered(values: Values, dtype: str, kind: str, shift: int) -> NDArray[np.int64]:
    """Integers that are as many apart as numbers of the dtype lie between; both zeros are 0."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            bits = values.astype("<f2").view(kind)
    else:
        rounded = cast(values.astype("<f4"), "BF16") if dtype == "BF16" else values.astype("<f4")
        bits = np.ascontiguousarray(rounded).view(kind) >> shift
    sign = 1 << (15 if shift or kind == "<u2" else 31)
    size = (bits & (sign - 1)).astype(np.int64)
    return np.where(bits & sign, -size, size)
