"""The few factors that make predictions of serving agree with a user's own measurements.

A factor is of a cause of time (`data/efficiency.py`, FACTORS), never of a model or a row. The fit pulls all of them
towards 1, the harder the less the table says: how hard is what predicts points best that were left out. Where nothing
predicts those better than the shipped figures do, the shipped figures stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import tomli_w

from dayzero.data.causes import FACTORS
from dayzero.data.efficiency import Efficiency, efficiency
from dayzero.errors import TargetError, UsageError
from dayzero.fitting import Array, Sample, gather, least_squares, left_out, mean_error, robust
from dayzero.progress import SILENT, Progress
from dayzero.schema.calibration import Calibration
from dayzero.schema.store import write_atomic
from dayzero.stages.plan.times.serving import served

FEW = 8
"""Rows below which nothing is fitted."""
ENOUGH = 20
"""Rows from which on their own spread makes the intervals."""
PULLS = (0.05, 0.15, 0.4)
"""Logs of a factor that count as much as one point that is off by as much as `fitting.NEAR`: the choice."""
FOLDS = 5
"""Parts of a table whose points were all run in one way."""
MOST_FOLDS = 10
"""Parts of one whose points were run in many ways."""
SURE = 2.0
"""Standard errors by which points left out have to be predicted better than by the shipped figures."""
CAUSES = tuple(FACTORS)
Figures = dict[str, Any]
"""Field -> figure, or one for each case."""


@dataclass(frozen=True)
class Fitted:
    """A calibration and what it is worth."""

    calibration: Calibration
    """What was found."""
    changed: bool
    """Whether it differs from the shipped figures."""
    reason: str
    """Why it does not, or on how many points it was tried that were left out of it."""


class Model:
    """Times of a sample as a function of the factors."""

    def __init__(self, known: Efficiency) -> None:
        self.known = known

    def predict(self, logs: Array, sample: Sample) -> Array:
        """Seconds, shape [cases, 2]: between tokens, to the first. `logs`: of the factors, in the order of CAUSES."""
        return _times(logs, sample, self._figures(sample))

    def fit(self, sample: Sample, pull: float) -> Array:
        """The logs of the factors."""
        figures = self._figures(sample)

        def residuals(logs: Array) -> Array:
            off = np.log(_times(logs, sample, figures) / sample.measured)
            return np.concatenate([robust(off[:, 0]), 0.5 * robust(off[:, 1]), 0.2 * logs / pull])

        return least_squares(residuals, np.zeros(len(CAUSES)))

    def _figures(self, sample: Sample) -> tuple[Figures, Figures, Figures]:
        """Those of the generation and of the engine, one for each case, and those that all cases have."""
        each = [case.figures(self.known) for case in sample.cases]
        common = {field: getattr(self.known.common, field) for field in self.known.common.__struct_fields__}
        return _columns([one[0] for one in each]), _columns([one[1] for one in each]), common


def _times(logs: Array, sample: Sample, figures: tuple[Figures, Figures, Figures]) -> Array:
    parts, factors = [dict(part) for part in figures], dict(zip(CAUSES, np.exp(logs), strict=True))
    for cause, fields in FACTORS.items():
        for field, power in fields.items():
            for part in parts:
                if field in part and not (field == "prefill_factor" and part is parts[0]):
                    part[field] = part[field] * factors[cause] ** power
    return np.stack(served(sample.load, *(SimpleNamespace(**part) for part in parts)), axis=1)


def _columns(figures: Sequence[msgspec.Struct]) -> Figures:
    """Field -> one figure for each case."""
    return {field: np.array([getattr(one, field) for one in figures])
            for field in figures[0].__struct_fields__ if field not in ("arch", "names")}


def calibrate(points: Path, releases: Sequence[Path], out: Path, progress: Progress = SILENT) -> Fitted:
    """Fit the factors to a table of serving points and write them. Raises UsageError, and NotPossible where no row says
    enough."""
    sample = gather(points, releases, efficiency(), progress=progress)
    found = fitted(sample, points.name, progress)
    stated = {key: value for key, value in msgspec.to_builtins(found.calibration).items() if value is not None}
    write_atomic(out, tomli_w.dumps(stated).encode())
    return found


def fitted(sample: Sample, source: str, progress: Progress = SILENT) -> Fitted:
    """The factors that predict points best that were left out."""
    model, nothing = Model(efficiency()), np.zeros(len(CAUSES))
    shipped = model.predict(nothing, sample)
    before = _errors("before", shipped, sample.measured)
    rows = len(sample.cases)
    if rows < FEW:
        return Fitted(Calibration(source=source, rows=rows, factors={}, errors=before), False,
                      f"{rows} rows that say enough are fewer than {FEW}")
    folds = _folds(sample)
    progress.update(f"fitting {rows} points")
    tried = {pull: left_out(_predictor(model, pull), sample, folds) for pull in PULLS}
    pull = min(tried, key=lambda one: _score(tried[one], sample.measured).mean())
    gained = _score(shipped, sample.measured) - _score(tried[pull], sample.measured)
    off = [mean_error(made[:, 0], sample.measured[:, 0]) for made in (shipped, tried[pull])]
    if gained.mean() <= SURE * gained.std() / np.sqrt(rows) or off[1] >= off[0]:
        errors = {**before, **_errors("left out", tried[pull], sample.measured)}
        return Fitted(Calibration(source=source, rows=rows, factors={}, errors=errors), False,
                      "no factors predict points that were left out clearly better than the shipped figures do")
    logs = model.fit(sample, pull)
    after = model.predict(logs, sample)
    errors = {**before, **_errors("after", after, sample.measured),
              **_errors("left out", tried[pull], sample.measured)}
    factors = {cause: round(float(factor), 4) for cause, factor in zip(CAUSES, np.exp(logs), strict=True)
               if abs(factor - 1) > 0.005}
    bands = _bands(tried[pull], sample.measured) if rows >= ENOUGH else (None, None)
    made = Calibration(source=source, rows=rows, factors=factors, tpot=bands[0], ttft=bands[1], errors=errors)
    launched = sum(case.published for case in sample.cases)
    options = f"; {launched} points have the options of published launches of their load" if launched else ""
    return Fitted(made, True, f"tried on each of {len(np.unique(folds))} parts of the table, left out of the fit"
                  + options)


def _predictor(model: Model, pull: float) -> Callable[[Sample], Callable[[Sample], Array]]:
    def of(part: Sample) -> Callable[[Sample], Array]:
        logs = model.fit(part, pull)
        return lambda other: model.predict(logs, other)

    return of


def _folds(sample: Sample) -> Array:
    """Points that were run in one way together, if there are at least three ways; else every fifth."""
    runs = np.unique([str(run) for run in sample.runs], return_inverse=True)[1]
    return runs % MOST_FOLDS if runs.max() >= 2 else np.arange(len(runs)) % FOLDS


def _score(made: Array, measured: Array) -> Array:
    """Of each case, less is better."""
    off: Array = np.abs(np.log(made / measured))
    return off[:, 0] + 0.5 * off[:, 1]


def _errors(name: str, made: Array, measured: Array) -> dict[str, float]:
    return {f"{name}, {what}": round(mean_error(made[:, i], measured[:, i]), 4)
            for i, what in enumerate(("time between tokens", "time to the first token"))}


def _bands(made: Array, measured: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    low, high = np.quantile(measured / made, 0.05, axis=0), np.quantile(measured / made, 0.95, axis=0)
    first, second = ((round(min(1.0, float(low[i])), 4), round(max(1.0, float(high[i])), 4)) for i in (0, 1))
    return first, second


def calibration(path: Path) -> Calibration:
    """A file that `calibrate` wrote. Raises UsageError."""
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=Calibration)
    except TargetError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {path}: {why}", "give a file that dayzero calibrate wrote") from None
    unknown = sorted(set(found.factors) - set(CAUSES))
    if unknown or any(not 0.01 < factor < 100 for factor in found.factors.values()):
        what = f"no cause is called {unknown[0]}" if unknown else "a factor is not between 0.01 and 100"
        raise UsageError(f"{path}: {what}", f"factors are of {', '.join(CAUSES)}")
    return found
