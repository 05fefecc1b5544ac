"""Fitting figures to measured serving points: the points as arrays, a robust loss, a minimiser, errors of what was left
out.

Used for the shipped figures (scripts/fit_efficiency.py) and for a user's calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from dayzero.data.efficiency import Efficiency
from dayzero.errors import DayzeroError, NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.score import Models, read_points
from dayzero.score_serve import Case, Cases
from dayzero.stages.plan.times.serving import Load

NEAR = 0.3
"""Relative error up to which residuals count by their square; beyond, ever less: a table has points that were run in
another way than it says, and no figure of a class of operators explains them."""
FAR = 4.0
"""Times the measurement above which a prediction counts no worse."""
STEP = 1e-4
"""Of figures, for differences."""
Array = np.ndarray[Any, Any]


@dataclass
class Sample:
    """Cases with what was measured."""

    cases: list[Case]
    """One for each row that says enough."""
    measured: Array
    """Seconds between tokens, to the first; shape [cases, 2]."""
    numbers: list[int]
    """Data rows of the table."""
    families: list[Any]
    """What models of one family have in common."""
    runs: list[Any]
    """What points that were run in one way have in common."""
    load: Load
    """Of all cases, as arrays."""

    def part(self, kept: Array) -> Sample:
        """Some of them."""
        chosen = np.flatnonzero(kept)
        cases = [self.cases[i] for i in chosen]
        numbers, families, runs = ([column[i] for i in chosen] for column in (self.numbers, self.families, self.runs))
        return Sample(cases, self.measured[chosen], numbers, families, runs, Load.stack([one.load for one in cases]))

    @property
    def kinds(self) -> Array:
        """together, apart or unstated."""
        return np.array([case.kind for case in self.cases])

    @property
    def devices(self) -> Array:
        """Name of each case's device."""
        return np.array([case.device.name for case in self.cases])


def gather(points: Path, releases: Sequence[Path], known: Efficiency, wanted: Callable[[Case], bool] = lambda _: True,
           progress: Progress = SILENT) -> Sample:
    """The cases of all rows of a table that say enough. Raises UsageError when it cannot be read."""
    cases, measured, numbers, families, runs = [], [], [], [], []
    maker = Cases(Models(releases), known)
    rows = read_points(points, "serve")
    for number, row in enumerate(rows):
        progress.update(f"counting what {len(rows)} points do", number, len(rows))
        try:
            times = [float(row[key]) / 1000 for key in ("tpot_ms_mean", "ttft_ms_mean")]
            made, model = maker.of(row), maker.model(row)
        except (DayzeroError, NotPossible, ValueError, KeyError):
            continue
        if len(made) == 1 and all(0 < time < inf for time in times) and not made[0].assumed and wanted(made[0]):
            cases.append(made[0])
            measured.append(times)
            numbers.append(number)
            families.append((len(model.layers), model.hidden_size, model.vocab_size))
            runs.append(tuple(row[key] for key in ("model", "framework", "gpu", "precision")))
    load = Load.stack([case.load for case in cases]) if cases else None
    if load is None:
        raise NotPossible(f"no row of {points} says enough to be predicted", "score it: the reasons are in the output")
    return Sample(cases, np.array(measured), numbers, families, runs, load)


def robust(off: Array, near: float = NEAR) -> Array:
    """Square roots of the loss log(1 + (off / near)^2) near NEAR, with the sign: near 0 that of (off)^2 NEAR / near."""
    made: Array = np.sign(off) * np.sqrt(near * NEAR * np.log1p((off / near) ** 2))
    return made


def relative(ratio: Array) -> Array:
    """Predicted / measured - 1, up to where it counts no worse."""
    made: Array = np.where(ratio < FAR, ratio - 1, FAR - 1 + 0.1 * np.log(np.maximum(ratio, FAR) / FAR))
    return made


def least_squares(residuals: Callable[[Array], Array], start: Array, rounds: int = 40,
                  slopes: Callable[[Array, Array], Array] | None = None) -> Array:
    """Levenberg-Marquardt. `slopes`: from figures and their residuals the Jacobian, shape [residuals, figures]; None:
    from differences, one figure after another."""
    def differences(at: Array, off: Array) -> Array:
        return np.stack([(residuals(at + STEP * axis) - off) / STEP for axis in np.eye(len(at))], axis=1)

    at: Array = start.copy()
    off, damping = residuals(at), 1e-2
    for _ in range(rounds):
        slope = (slopes or differences)(at, off)
        square, pull = slope.T @ slope, slope.T @ off
        for _ in range(8):
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -pull)
            tried = residuals(at + np.clip(step, -0.5, 0.5))
            if tried @ tried < off @ off:
                break
            damping *= 4
        else:
            return at
        gain = 1 - (tried @ tried) / (off @ off)
        at, off, damping = at + np.clip(step, -0.5, 0.5), tried, damping / 3
        if gain < 1e-5:
            return at
    return at


def left_out(fitted: Callable[[Sample], Callable[[Sample], Array]], sample: Sample, groups: Array) -> Array:
    """Predictions of each group by what the others give. `fitted`: from a sample to a predictor."""
    made = np.zeros_like(sample.measured)
    for group in np.unique(groups):
        kept = groups == group
        if not kept.all():
            made[kept] = fitted(sample.part(~kept))(sample.part(kept))
    return made


def drafting(sample: Sample, drafted: Array) -> Sample:
    """The sample where those cases propose tokens."""
    return replace(sample, load=replace(sample.load, drafted=drafted))


def mean_error(made: Array, measured: Array) -> float:
    """Mean of the relative errors."""
    return float(np.abs(made / measured - 1).mean())
