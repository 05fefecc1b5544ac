"""Points of one operator, interpolated in its own axes: times and lengths as logs, multilinear between neighbours.

Axes of the shape (heads, widths of experts) take the nearest point that was measured; axes of the grid (tokens,
context) are interpolated. Along a rising axis time cannot fall: a batch can be padded to a larger one, so a point that
took longer than one with more of everything (a hiccup, a slow kernel for an odd length) is lowered to it. On every
other point the value is the measured one. What was not measured is filled in along the rising axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NINETY = 1.645
"""Standard deviations that nine tenths lie within."""
NOISE = 0.02
"""Standard deviation of the log of a repeated measurement."""
HALF = 0.5
"""Share of the error of a left-out point, whose neighbours lie twice as far apart, in the middle of a cell."""
DOUBLING = 0.2
"""Standard deviation of the log for each doubling between what is asked for and the nearest point."""
STEEPEST = 2.0
"""Largest power of a length that time is filled in with: attention over all pairs."""
BELOW = 0.25
"""Doublings that one below the smallest point counts as: there a launch takes most of the time."""
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""What mixes columns to one: odd numbers without a pattern. Rows that it cannot tell apart are told apart."""
UNLIMITED = float(2**40)
"""Length of an axis without a limit."""


@dataclass(frozen=True)
class Found:
    """Answers to many queries, one entry each."""

    seconds: Array
    """At `at`; nan where nothing is near."""
    spread: Array
    """Standard deviation of its log."""
    away: Array
    """Doublings between what was asked for and `at`, over all axes; 0: inside the grid of a measured shape."""
    filled: Array
    """Whether a neighbour was not measured."""
    on_point: Array
    """Whether it is a measured point."""
    at: dict[str, Array]
    """Axis -> where the table was read."""


@dataclass(frozen=True)
class Slice:
    """Points of one operator for one set of keys."""

    shape_axes: tuple[str, ...]
    """Names."""
    shapes: Array
    """[shapes, shape axes]: lengths."""
    grid_axes: tuple[str, ...]
    """Names."""
    points: tuple[Array, ...]
    """For each grid axis its lengths, rising."""
    logs: Array
    """[shapes, *points]: log of seconds, everywhere."""
    measured: Array
    """The same shape: whether it was measured."""
    left_out: Array
    """For each grid axis: standard deviation of the log of a point predicted from its neighbours."""
    rough: float
    """Standard deviation of the log, as nine tenths have it, by which rising axes moved points."""

    @classmethod
    def of(cls, shape: Mapping[str, Array], grid: Mapping[str, Array], seconds: Array, rising: Sequence[str]) -> Slice:
        """From columns of one length. Raises ValueError where a time or a length is not positive."""
        columns = [*shape.values(), *grid.values(), seconds]
        if not len(seconds) or any(not (np.isfinite(one).all() and (one > 0).all()) for one in columns):
            raise ValueError("lengths and times have to be positive")
        whole = np.stack(list(shape.values()), axis=1) if shape else np.ones((len(seconds), 0))
        shapes, group = np.unique(whole, axis=0, return_inverse=True)
        axes = [np.unique(column, return_inverse=True) for column in grid.values()]
        logs = np.full((len(shapes), *(len(values) for values, _ in axes)), np.nan)
        logs[(group.reshape(-1), *(at.reshape(-1) for _, at in axes))] = np.log(seconds)
        known, names = np.isfinite(logs), tuple(grid)
        points = tuple(values.astype(float) for values, _ in axes)
        order = [1 + names.index(name) for name in rising]
        straight = rise(logs, order) if order else logs
        moved = (straight - logs)[known]
        return cls(shape_axes=tuple(shape), shapes=shapes.astype(float), grid_axes=names, points=points,
                   logs=fill(straight, order, points), measured=known, left_out=left_out(logs, points),
                   rough=float(np.quantile(np.abs(moved), 0.9)) / NINETY)

    @property
    def least(self) -> float:
        """Shortest time, seconds."""
        return float(np.exp(self.logs[self.measured].min()))

    def read(self, axes: Mapping[str, Array]) -> Found:
        """For arrays of lengths that broadcast. An axis of the shape that is not asked for matches anything."""
        asked = {name: np.asarray(axes[name], dtype=float) for name in (*self.shape_axes, *self.grid_axes)
                 if name in axes}
        size = np.broadcast_shapes(*(one.shape for one in asked.values()))
        asked = {name: np.broadcast_to(one, size).reshape(-1) for name, one in asked.items()}
        group, away = self._nearest(asked)
        at = {name: self.shapes[group, i] for i, name in enumerate(self.shape_axes)}
        places = []
        for name, points in zip(self.grid_axes, self.points, strict=True):
            inside = np.clip(asked[name], points[0], points[-1])
            off = np.log2(np.maximum(asked[name], 1e-9) / inside)
            away = away + np.where(off < 0, -BELOW * off, off)
            at[name] = inside
            places.append(_place(np.log(points), np.log(inside)))
        seconds, filled, on_point = self._between(group, places)
        return Found(seconds=seconds, spread=self._spread(places, away, filled), away=away, filled=filled,
                     on_point=on_point & (away == 0), at=at)

    def _nearest(self, asked: Mapping[str, Array]) -> tuple[Array, Array]:
        """(index of the nearest shape, doublings to it)."""
        names = [(i, name) for i, name in enumerate(self.shape_axes) if name in asked]
        count = len(asked[self.grid_axes[0]])
        if not names or not count:
            return np.zeros(count, dtype=int), np.zeros(count)
        first, where = distinct([asked[name] for _, name in names])
        wanted = np.log2(np.stack([np.maximum(asked[name][first], 1e-9) for _, name in names], axis=1))
        known = np.log2(self.shapes[:, [i for i, _ in names]])
        off = np.abs(wanted[:, None, :] - known[None, :, :]).sum(axis=2)
        best = off.argmin(axis=1)
        return best[where], off[np.arange(len(first)), best][where]

    def _between(self, group: Array, places: list[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
        """(seconds, whether a neighbour was filled in, whether it is one measured point)."""
        logs, filled = np.zeros(len(group)), np.zeros(len(group), dtype=bool)
        exact = np.ones(len(group), dtype=bool)
        for corner in product((0, 1), repeat=len(places)):
            weight, index = np.ones(len(group)), [group]
            for upper, (below, share) in zip(corner, places, strict=True):
                weight = weight * (share if upper else 1 - share)
                index.append(np.where(weight > 0, below + upper, below))
            logs += np.where(weight > 0, weight * self.logs[tuple(index)], 0.0)
            filled |= (weight > 0) & ~self.measured[tuple(index)]
            exact &= (weight == 0) | (weight == 1)
        return np.exp(logs), filled, exact & ~filled

    def _spread(self, places: list[tuple[Array, Array]], away: Array, filled: Array) -> Array:
        square = NOISE**2 + self.rough**2 + (DOUBLING * away) ** 2 + filled * np.sum(self.left_out**2)
        for error, (_, share) in zip(self.left_out, places, strict=True):
            square = square + (HALF * error * 4 * share * (1 - share)) ** 2
        spread: Array = np.sqrt(square)
        return spread


def distinct(columns: Sequence[Array]) -> tuple[Array, Array]:
    """(positions of rows that differ, for each row which of them it is like)."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column, odd in zip(columns, itertools.cycle(_ODD)):
        mixed = (mixed ^ np.ascontiguousarray(column, dtype=float).view(np.uint64)) * np.uint64(odd)
        mixed ^= mixed >> np.uint64(29)
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    if all((column == column[first][which]).all() for column in columns):
        return first, which
    _, first, which = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _place(points: Array, wanted: Array) -> tuple[Array, Array]:
    """(index of the point below, share of the way to the next)."""
    if len(points) == 1:
        return np.zeros(len(wanted), dtype=int), np.zeros(len(wanted))
    below = np.clip(np.searchsorted(points, wanted, side="right") - 1, 0, len(points) - 2)
    return below, (wanted - points[below]) / (points[below + 1] - points[below])


def bounds(logs: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """(largest of all points below or at each, smallest of all above or at it); nan: there is none."""
    low = high = logs
    for axis in axes:
        low = np.fmax.accumulate(low, axis=axis)
        high = np.flip(np.fmin.accumulate(np.flip(high, axis), axis=axis), axis)
    return low, high


def rise(logs: Array, axes: Sequence[int]) -> Array:
    """Each point at most as high as the lowest of those with more of everything; points that rise already stay."""
    lowest: Array = np.where(np.isnan(logs), np.nan, bounds(logs, axes)[1])
    return lowest


def fill(logs: Array, axes: Sequence[int], points: Sequence[Array]) -> Array:
    """What was not measured: along each rising axis in turn as the last two points go on, never down; then the
    nearest along the others. Values stay between those that dominate and are dominated."""
    if not np.isnan(logs).any():
        return logs
    made = logs
    low, high = bounds(logs, axes)
    for axis in [*reversed(axes), *(axis for axis in range(1, logs.ndim) if axis not in axes)]:
        slope = STEEPEST if axis in axes else 0.0
        made = _along(made, axis, np.log(points[axis - 1]), slope)
    if not axes:
        return made
    held = np.fmin(np.fmax(made, low), high)
    held = np.where(np.isnan(logs), held, logs)
    for axis in axes:
        held = np.fmax.accumulate(held, axis=axis)
    return np.where(np.isnan(logs), held, logs)


def _along(logs: Array, axis: int, points: Array, steepest: float) -> Array:
    """Lines along one axis with at least one value, without gaps."""
    lines = np.moveaxis(logs, axis, -1)
    flat = lines.reshape(-1, lines.shape[-1]).copy()
    for number in np.flatnonzero(np.isnan(flat).any(axis=1) & ~np.isnan(flat).all(axis=1)):
        line = flat[number]
        known = np.flatnonzero(~np.isnan(line))
        filled = np.interp(points, points[known], line[known])
        slope = 0.0
        if len(known) > 1:
            slope = float((line[known[-1]] - line[known[-2]]) / (points[known[-1]] - points[known[-2]]))
        beyond = np.maximum(points - points[known[-1]], 0.0) * min(max(slope, 0.0), steepest)
        line[:] = np.where(np.isnan(line), filled + beyond, line)
    return np.moveaxis(flat.reshape(lines.shape), -1, axis)


def left_out(logs: Array, points: Sequence[Array]) -> Array:
    """For each grid axis the standard deviation, as nine tenths of them have it, of a point predicted from its
    neighbours; 0 where no point has two."""
    return np.array([float(np.quantile(errors, 0.9)) / NINETY if len(errors) else 0.0
                     for errors in _errors(logs, points)])


def _errors(logs: Array, points: Sequence[Array]) -> Iterator[Array]:
    for axis, lengths in enumerate(points, 1):
        lines, at = np.moveaxis(logs, axis, -1), np.log(lengths)
        if len(at) < 3:
            yield np.array([])
            continue
        share = (at[1:-1] - at[:-2]) / (at[2:] - at[:-2])
        off = np.abs(lines[..., :-2] * (1 - share) + lines[..., 2:] * share - lines[..., 1:-1])
        yield off[np.isfinite(off)]
