"""Fit the shares of their rates that devices reach, and what engines add, to a table of measured serving points.

    fit_efficiency.py POINTS.csv RELEASES [--out src/dayzero/data/efficiency.toml]

Every figure belongs to a class of operators on a generation of devices, to an engine, or to all; none to a model or a
row. Errors are shown, and intervals taken, with whole model families and whole systems left out.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from dayzero.data.efficiency import Efficiency
from dayzero.errors import DayzeroError, NotPossible
from dayzero.score import Models, read_points
from dayzero.score_serve import Case, Cases
from dayzero.stages.plan.serving import Load, served

ROOT = Path(__file__).parent.parent
NEAR = 0.12
"""Error in log up to which residuals count by their square, above by their size."""
LATER = {"apart": ("apart_request", "apart_queue", "apart_power"),
         "unstated": ("unstated_tpot", "unstated_batch", "unstated_wide", "unstated_queue", "unstated_power")}
"""Figures of points whose workers are apart, by what is known of them: fitted last, for much of how those were run is
not stated."""
Array = np.ndarray[Any, Any]


class Sample:
    """Cases with what was measured, as arrays."""

    def __init__(self, cases: list[Case], measured: Array, families: list[object], start: dict[str, Any]) -> None:
        self.cases, self.measured, self.families = cases, measured, families
        arches = [one["arch"] for one in start["generations"]]
        names = [one["names"] for one in start["engines"]]
        self.generation = np.array([_index(case.device.arch, arches) for case in cases])
        self.engine = np.array([_index(case.engine, names) for case in cases])
        self.kind = np.array([case.kind for case in cases])
        self.system = np.array([case.device.name for case in cases])
        self.family = np.array([families.index(one) for one in families]) if families else np.array([])
        self.load = Load.stack([case.load for case in cases])
        self.start = start

    def part(self, kept: Array) -> Sample:
        """Some of them."""
        numbers = np.flatnonzero(kept)
        return Sample([self.cases[i] for i in numbers], self.measured[numbers],
                      [self.families[i] for i in numbers], self.start)


def _index(name: str, groups: list[list[str]]) -> int:
    return next(i for i, group in enumerate(groups) if name in group)


class Figures:
    """The figures as one vector of logs."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.keys = [(part, field, i) for part, count in (("generation", len(start["generations"])),
                                                          ("engine", len(start["engines"])), ("common", 1))
                     for field in start[part] for i in range(count)]
        pairs = [start[part][field] for part, field, _ in self.keys]
        self.first = np.log([value for value, _ in pairs])
        self.width = np.array([width for _, width in pairs])
        self.fixed = start["fixed"]

    def tables(self, vector: Array) -> dict[str, dict[str, Array]]:
        """Part -> field -> figures."""
        made: dict[str, dict[str, list[float]]] = {}
        for (part, field, _), value in zip(self.keys, np.exp(vector), strict=True):
            made.setdefault(part, {}).setdefault(field, []).append(float(value))
        return {part: {field: np.array(values) for field, values in fields.items()} for part, fields in made.items()}

    def predict(self, vector: Array, sample: Sample) -> Array:
        """Seconds, shape [cases, 2]: between tokens, to the first."""
        tables = self.tables(vector)
        at = {"generation": sample.generation, "engine": sample.engine}
        parts = {part: SimpleNamespace(**{field: values[at[part]] for field, values in tables[part].items()})
                 for part in at}
        common = SimpleNamespace(**{field: values[0] for field, values in tables["common"].items()}, **self.fixed)
        return np.stack(served(sample.load, parts["generation"], parts["engine"], common), axis=1)

    def fit(self, sample: Sample, vector: Array, free: Array, weights: tuple[float, float], relative: bool) -> Array:
        """The vector that fits the sample best, moving the free figures only."""
        def residuals(values: Array) -> Array:
            whole = vector.copy()
            whole[free] = values
            ratio = self.predict(whole, sample) / sample.measured
            off = np.minimum(ratio, 20) - 1 if relative else np.log(ratio)
            held = (whole - self.first)[free] / self.width[free] * 0.7
            return np.concatenate([*(3 * weight * _robust(off[:, i]) for i, weight in enumerate(weights)), held])

        made = vector.copy()
        made[free] = least_squares(residuals, vector[free])
        return made

    def fitted(self, sample: Sample) -> Array:
        """All figures: first those of engines that do everything, then those of workers apart."""
        later = np.array([any(field in own for own in LATER.values()) for _, field, _ in self.keys])
        stated = sample.part(sample.kind != "unstated")
        vector = self.fit(stated, self.first, ~later, (1.0, 0.5), relative=False)
        vector = self.fit(stated, vector, ~later, (1.0, 0.5), relative=True)
        for kind, own in LATER.items():
            free = np.array([field in own for _, field, _ in self.keys])
            if (kept := sample.kind == kind).any():
                vector = self.fit(sample.part(kept), vector, free, (1.0, 1.0), relative=True)
        return vector


def _robust(off: Array) -> Array:
    """Square roots of the pseudo-Huber loss, with the sign."""
    return np.sign(off) * np.sqrt(2 * NEAR * (np.sqrt(NEAR**2 + off**2) - NEAR))


def least_squares(residuals: Callable[[Array], Array], start: Array, rounds: int = 60) -> Array:
    """Levenberg-Marquardt with a Jacobian from differences."""
    at, damping = start.copy(), 1e-2
    off = residuals(at)
    for _ in range(rounds):
        slope = np.stack([(residuals(at + 1e-4 * axis) - off) / 1e-4 for axis in np.eye(len(at))], axis=1)
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


def gather(points: Path, releases: Path, start: dict[str, Any]) -> Sample:
    """The cases of all rows that say enough."""
    cases, measured, families = [], [], []
    maker = Cases(Models([releases]), _blank(start))
    known = {arch for one in start["generations"] for arch in one["arch"]}
    named = {name for one in start["engines"] for name in one["names"]}
    for row in read_points(points, "serve"):
        try:
            times = [float(row[key]) / 1000 for key in ("tpot_ms_mean", "ttft_ms_mean")]
            made, model = maker.of(row), maker.model(row)
        except (DayzeroError, NotPossible, ValueError):
            continue
        if len(made) == 1 and min(times) > 0 and not made[0].assumed and (
                made[0].device.arch in known and made[0].engine in named):
            cases.append(made[0])
            measured.append(times)
            families.append((len(model.layers), model.hidden_size, model.vocab_size))
    return Sample(cases, np.array(measured), families, start)


def _blank(start: dict[str, Any]) -> Efficiency:
    """The figures to start from."""
    first = Figures(start)
    return convert(first.tables(first.first), start, 0, {}, [])


def convert(tables: dict[str, dict[str, Array]], start: dict[str, Any], rows: int, spread: dict[str, float],
            intervals: list[dict[str, Any]]) -> Efficiency:
    """As the data file has it; of what is not known the mean of the logs."""
    def entries(part: str, own: list[dict[str, Any]], other: dict[str, Any]) -> list[dict[str, Any]]:
        made = [{**entry, **{field: float(values[i]) for field, values in tables[part].items()}}
                for i, entry in enumerate(own)]
        return [*made, {**other, **{field: float(np.exp(np.log(values).mean())) for field, values in
                                    tables[part].items()}}]

    common = {field: float(values[0]) for field, values in tables["common"].items()}
    return msgspec.convert({
        "source": "aiconfigurator-core 0.12 (Apache-2.0), systems/silicon_sample.csv: measured serving points",
        "rows": rows, "spread": spread, "common": {**common, **start["fixed"]},
        "generations": entries("generation", start["generations"], {"arch": []}),
        "engines": entries("engine", start["engines"], {"names": ["any"], "reserved": 0.0}),
        "intervals": intervals}, Efficiency)


def shown(name: str, made: Array, sample: Sample, kept: Array) -> dict[str, float]:
    """Print and return the errors of some cases."""
    told = {}
    for i, kind in enumerate(("tpot", "ttft")):
        off = np.abs(made[kept, i] / sample.measured[kept, i] - 1)
        told[f"{name}: {kind}, mean"] = round(float(off.mean()), 4)
        told[f"{name}: {kind}, median"] = round(float(np.median(off)), 4)
        print(f"{name:34} {kind} n {kept.sum():5d}  mean {off.mean():7.1%}  median {np.median(off):6.1%}  within 20 % "
              f"{(off < 0.2).mean():4.0%}", flush=True)
    return told


def left_out(figures: Figures, sample: Sample, groups: Array) -> Array:
    """Predictions of each group by what the others give."""
    made = np.zeros_like(sample.measured)
    for group in np.unique(groups):
        kept = groups == group
        if kept.all():
            continue
        made[kept] = figures.predict(figures.fitted(sample.part(~kept)), sample)[kept]
    return made


def interval(evidence: str, made: Array, sample: Sample, kept: Array) -> dict[str, Any]:
    """Factors that nine tenths of the measurements lie between."""
    ratios = sample.measured[kept] / made[kept]
    low, high = np.quantile(ratios, 0.05, axis=0), np.quantile(ratios, 0.95, axis=0)
    return {"evidence": evidence, "rows": int(kept.sum()), "tpot": (float(low[0]), float(high[0])),
            "ttft": (float(low[1]), float(high[1]))}


def written(known: Efficiency) -> str:
    """The data file."""
    def value(one: Any) -> str:
        if isinstance(one, str):
            return f'"{one}"'
        if isinstance(one, (list, tuple)):
            return "[" + ", ".join(value(each) for each in one) + "]"
        return f"{one:.4g}" if isinstance(one, float) else str(one)

    whole = msgspec.to_builtins(known)
    lines = ["# Written by scripts/fit_efficiency.py. docs/numbers.md says what each figure is of.",
             f"source = {value(whole['source'])}", f"rows = {whole['rows']}"]
    for part in ("spread", "common"):
        lines += ["", f"[{part}]", *(f'{field if part == "common" else value(field)} = {value(one)}'
                                     for field, one in whole[part].items())]
    for part in ("generations", "engines", "intervals"):
        for entry in whole[part]:
            lines += ["", f"[[{part}]]", *(f"{field} = {value(one)}" for field, one in entry.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "src/dayzero/data/efficiency.toml")
    asked = parser.parse_args()
    start = tomllib.loads((Path(__file__).parent / "efficiency_start.toml").read_text())
    sample, figures = gather(asked.points, asked.releases, start), Figures(start)
    vector = figures.fitted(sample)
    made = figures.predict(vector, sample)
    together, stated, unstated = (sample.kind == kind for kind in ("together", "apart", "unstated"))
    spread = shown("fit, one kind of worker", made, sample, together)
    for name, kept in (("fit, workers apart", stated), ("fit, workers not stated", unstated)):
        spread |= shown(name, made, sample, kept)
    for group in np.unique(sample.system):
        shown(f"  {group}", made, sample, together & (sample.system == group))
    families, systems = (left_out(figures, sample, groups) for groups in (sample.family, sample.system))
    spread |= shown("family left out", families, sample, together)
    for group in np.unique(sample.family):
        shown(f"  {sample.families[group]}", families, sample, together & (sample.family == group))
    spread |= shown("system left out", systems, sample, together)
    for group in np.unique(sample.system):
        shown(f"  {group}", systems, sample, together & (sample.system == group))
    bands = []
    for kind, kept in (("together", together), ("apart", stated), ("unstated", unstated)):
        inside = np.where(kept[:, None] & together[:, None], families, made)
        bands += [interval(f"{kind}, measured", inside, sample, kept),
                  interval(f"{kind}, not measured", systems, sample, kept)]
    known = convert(figures.tables(vector), start, len(sample.cases), spread, bands)
    asked.out.write_text(written(known))


if __name__ == "__main__":
    main()
