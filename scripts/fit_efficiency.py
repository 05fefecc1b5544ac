"""Fit the shares of their rates that devices reach, and what engines add, to a table of measured serving points.

    fit_efficiency.py POINTS.csv RELEASES [--out src/dayzero/data/efficiency.toml]

Every figure belongs to a class of operators on a generation of devices, to an engine, to the kernels of an engine for
one scheme, or to all; none to a model or a row. Errors are shown, and intervals taken, with whole model families and
whole systems left out.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from dayzero.data.efficiency import KERNEL_FACTORS, Efficiency
from dayzero.fitting import NEAR, STEP, Array, Sample, drafting, gather, least_squares, left_out, relative, robust
from dayzero.score_serve import Case
from dayzero.stages.plan.times.serving import served

ROOT = Path(__file__).parent.parent
LATER = {"apart": ("apart_request", "apart_queue", "apart_power", "apart_capacity", "apart_decode", "apart_wide",
                   "apart_room", "apart_prefill", "apart_first",
                   "acceptance"),
         "unstated": ("unstated_tpot", "unstated_wide", "unstated_capacity", "unstated_queue", "unstated_power")}
"""Figures of points whose workers are apart, by what is known of them: fitted last, for much of how those were run is
not stated."""
NONE = {field: np.ones(0) for field in ("between", "first", "burst")}
"""Figures of no releases."""
TABLED = ("expert_rate", "expert_bytes", "expert_rows", "expert_call")
"""Figures that start from tables of operators."""
WEIGHTS = (1.0, 0.6)
"""Of errors of the time between tokens, and of that to the first."""
WAITS = ("request", "queue", "queue_power", "loaded", "burst", "first")
"""Figures that do not change the time between tokens: fitted once more to that to the first token alone,"""
WEIGHED = (0.0, 1.4)
"""with these weights,"""
CLOSE = 0.12
"""and nearer to the points in the middle: waiting is what tables disagree most about."""
MANY, SOME = 20, 5
"""Points that a release of an engine needs for figures of its own, and of each of at least two families of models: what
one family alone was run with says as much of the family."""
Release = tuple[str, str]
"""Engine and version."""


class Figures:
    """The figures as one vector of logs."""

    def __init__(self, start: dict[str, Any], releases: Sequence[Release] = ()) -> None:
        self.start, self.fixed, self.releases = start, start["fixed"], list(releases)
        self.arches = [one["arch"] for one in start["generations"]]
        self.names = [one["names"] for one in start["engines"]]
        self.schemes = list(dict.fromkeys(one["scheme"] for one in start["kernels"]))
        pairs = len(self.names) * len(self.schemes)
        self.counts = {"generation": len(self.arches), "engine": len(self.names), "common": 1,
                       "kernel": len(self.arches), "engine_scheme": pairs,
                       "generation_engine": len(self.arches) * len(self.names), "release": len(self.releases)}
        self.keys = [(part, field, i) for part, count in self.counts.items() for field in start[part]
                     for i in range(count)]
        self.first = np.log([start[part][field][0] for part, field, _ in self.keys])
        self.width = np.array([start[part][field][1] for part, field, _ in self.keys])
        self.tabled = self._tabled()
        self._placed: tuple[list[Case], tuple[Array, ...]] | None = None

    def _tabled(self) -> dict[str, Array]:
        """Field -> figures of [generation, engine, scheme]; where there is no table the mean of the generation's."""
        made = {field: np.full((len(self.arches), len(self.names), len(self.schemes)), np.nan) for field in TABLED}
        for one in self.start["kernels"]:
            at = (_index(one["arch"], self.arches), _index(one["engine"], self.names),
                  self.schemes.index(one["scheme"]))
            for field in TABLED:
                made[field][at] = one[field]
        for values in made.values():
            for own in values:
                own[np.isnan(own)] = np.exp(np.nanmean(np.log(own)))
        return made

    def tables(self, vector: Array) -> dict[str, dict[str, Array]]:
        """Part -> field -> figures."""
        made: dict[str, dict[str, list[float]]] = {}
        for (part, field, _), value in zip(self.keys, np.exp(vector), strict=True):
            made.setdefault(part, {}).setdefault(field, []).append(float(value))
        return {part: {field: np.array(values) for field, values in fields.items()} for part, fields in made.items()}

    def kernels(self, tables: dict[str, dict[str, Array]]) -> dict[str, Array]:
        """Field of `Kernels` -> figures of [generation, engine, scheme]."""
        shape = len(self.names), len(self.schemes)
        slower = tables["engine_scheme"]["expert"].reshape(shape)
        made = {field: self.tabled[field] * tables["kernel"][field][:, None, None] for field in TABLED}
        made["expert_rate"] = made["expert_rate"] / slower
        made["expert_bytes"] = made["expert_bytes"] / slower
        made["expert_call"] = made["expert_call"] * slower
        prefill = tables["generation_engine"]["prefill"].reshape(len(self.arches), len(self.names))
        made["prefill"] = np.repeat(prefill[:, :, None], len(self.schemes), axis=2)
        for field in ("linear", "first", "apart_decode", "apart_prefill"):
            made[field] = np.repeat(tables["engine_scheme"][field].reshape(1, *shape), len(self.arches), axis=0)
        return made

    def predict(self, vector: Array, sample: Sample) -> Array:
        """Seconds, shape [cases, 2]: between tokens, to the first."""
        tables, at = self.tables(vector), self.places(sample)
        generation, engine = ({field: values[at[i]] for field, values in tables[part].items()}
                              for i, part in enumerate(("generation", "engine")))
        engine["stream"] = np.array([one["stream"] for one in self.start["engines"]])[at[1]]
        made = self.kernels(tables)
        generation |= {field: made[field][at[0], at[1], at[3]] for field in TABLED}
        linear = made["linear"][at[0], at[1], at[2]]
        generation |= {field: generation[field] / linear for field in ("linear_rate", "linear_bytes")}
        engine["first"] = np.ones(len(sample.cases))
        for factor, field in KERNEL_FACTORS.items():
            engine[field] = engine[field] * made[factor][at[0], at[1], at[4]]
        own = {field: np.append(values, 1.0)[at[5]] for field, values in tables.get("release", NONE).items()}
        engine |= {"between": own["between"], "first": engine["first"] * own["first"],
                   "burst": engine["burst"] * own["burst"]}
        common = SimpleNamespace(**{field: values[0] for field, values in tables["common"].items()}, **self.fixed)
        return np.stack(served(sample.load, SimpleNamespace(**generation), SimpleNamespace(**engine), common), axis=1)

    def places(self, sample: Sample) -> tuple[Array, ...]:
        """Positions of each case's generation, engine, scheme of products, of experts, of experts where there are any,
        and release."""
        cases = sample.cases
        if self._placed is None or self._placed[0] is not cases:
            schemes = [[self.schemes.index(name) if name in self.schemes else 0 for name in (
                *case.schemes, next((one for one in reversed(case.schemes) if one in self.schemes), ""))]
                for case in cases]
            columns = np.array([[_index(case.device.arch, self.arches), _index(case.engine, self.names), *own,
                                 self._release(case)] for case, own in zip(cases, schemes, strict=True)]).T
            self._placed = cases, tuple(columns)
        return self._placed[1]

    def _release(self, case: Case) -> int:
        own = case.engine, case.version
        return self.releases.index(own) if own in self.releases else len(self.releases)

    def fit(self, sample: Sample, vector: Array, free: Array, weights: tuple[float, float] = WEIGHTS,
            near: float = NEAR) -> Array:
        """The vector that fits the sample best, moving the free figures only; `near` as that of `robust`."""
        for distance in (np.log, relative):
            def residuals(values: Array, distance: Any = distance, vector: Array = vector) -> Array:
                whole = vector.copy()
                whole[free] = values
                off = distance(self.predict(whole, sample) / sample.measured)
                held = (whole - self.first)[free] / self.width[free] * 0.7
                pulled = (3 * weight * robust(off[:, i], near) for i, weight in enumerate(weights))
                return np.concatenate([*pulled, held])

            def slopes(values: Array, off: Array, residuals: Any = residuals) -> Array:
                return self.slopes(residuals, values, off, np.flatnonzero(free), sample)

            vector = vector.copy()
            vector[free] = least_squares(residuals, vector[free], slopes=slopes)
        return vector

    def slopes(self, residuals: Any, values: Array, off: Array, free: Array, sample: Sample) -> Array:
        """The Jacobian: figures of one field are changed together, for each case has one of them. The residuals are
        those of all cases, one kind after another, and of how far each figure is pulled."""
        made, owners = np.zeros((len(off), len(values))), self.owners(sample)
        fields: dict[tuple[str, str], list[int]] = {}
        for column, key in enumerate(free):
            fields.setdefault(self.keys[key][:2], []).append(column)
        for (part, field), columns in fields.items():
            moved = values.copy()
            moved[columns] += STEP
            change = (residuals(moved) - off) / STEP
            owner = np.tile(owners.get(field if part == "engine_scheme" else part, owners["common"]),
                            (len(off) - len(values)) // len(sample.cases))
            for column in columns:
                rows = np.append(np.flatnonzero(owner == self.keys[free[column]][2]), len(owner) + column)
                made[rows, column] = change[rows]
        return made

    def owners(self, sample: Sample) -> dict[str, Array]:
        """Part, or field of engines and schemes -> which of its figures each case has."""
        generation, engine, products, experts, most, release = self.places(sample)
        schemes, engines = len(self.schemes), len(self.names)
        return {"generation": generation, "kernel": generation, "engine": engine, "common": 0 * engine,
                "generation_engine": generation * engines + engine, "release": release,
                "linear": engine * schemes + products, "expert": engine * schemes + experts,
                **dict.fromkeys(("first", "apart_decode", "apart_prefill"), engine * schemes + most)}

    def drafted(self, vector: Array, sample: Sample) -> Array:
        """1 for cases of runs that are nearer to the prediction if the model proposes tokens than if not: tables do not
        say which do."""
        able = np.array([case.drafts for case in sample.cases])
        off = [np.minimum(np.abs(np.log(self.predict(vector, drafting(sample, value * able))[:, 0]
                                        / sample.measured[:, 0])), 0.5) for value in (0.0, 1.0)]
        runs = np.array([str(run) for run in sample.runs])
        made = np.zeros(len(runs))
        for run in np.unique(runs[able]):
            made[runs == run] = off[1][runs == run].mean() < off[0][runs == run].mean()
        return made

    def fitted(self, sample: Sample) -> Array:
        """All figures: first those of engines that do everything, then those of workers apart."""
        told = set(releases(sample))
        later = np.array([any(field in own for own in LATER.values())
                          or (part == "release" and self.releases[i] not in told) for part, field, i in self.keys])
        together = sample.part(sample.kinds == "together")
        vector = self.first
        scaled = np.array([key[:2] == ("engine_scheme", "first") for key in self.keys])
        for _ in range(2):
            vector = self.fit(drafting(together, self.drafted(vector, together)), vector, ~later & ~scaled)
        waits = ~later & np.array([field in WAITS for _, field, _ in self.keys])
        vector = self.fit(together, vector, waits, WEIGHED, CLOSE)
        for kind, own in LATER.items():
            free = np.array([field in own for _, field, _ in self.keys])
            if (kept := sample.kinds == kind).any():
                vector = self.fit(sample.part(kept), vector, free)
        return vector


def releases(sample: Sample) -> list[Release]:
    """Those with figures of their own; points that state no version may be of any."""
    families: dict[Release, Counter[str]] = {}
    for case, family in zip(sample.cases, sample.families, strict=True):
        families.setdefault((case.engine, case.version), Counter())[str(family)] += 1
    return sorted(one for one, found in families.items()
                  if one[1] and found.total() >= MANY and sum(count >= SOME for count in found.values()) > 1)


def halves(sample: Sample) -> Array:
    """Each run in one of two halves, by chance, the same each time."""
    runs = np.unique([str(run) for run in sample.runs], return_inverse=True)[1]
    made: Array = np.random.default_rng(3).permutation(runs.max() + 1)[runs] % 2
    return made


def _index(name: str, groups: list[list[str]]) -> int:
    return next((i for i, group in enumerate(groups) if name in group), -1)


def blank(start: dict[str, Any]) -> Efficiency:
    """The figures to start from."""
    figures = Figures(start)
    return convert(figures, figures.first, 0, {}, [])


def convert(figures: Figures, vector: Array, rows: int, spread: dict[str, float], intervals: list[dict[str, Any]]
            ) -> Efficiency:
    """As the data file has it; of what is not known the mean of the logs."""
    start, tables = figures.start, figures.tables(vector)
    kernels = figures.kernels(tables)
    for i in range(len(figures.arches)):
        for field in TABLED:
            tables["generation"].setdefault(field, np.zeros(len(figures.arches)))[i] = np.exp(np.log(
                kernels[field][i]).mean())

    def entries(part: str, own: list[dict[str, Any]], other: dict[str, Any]) -> list[dict[str, Any]]:
        made = [{**entry, **{field: float(values[i]) for field, values in tables[part].items()}}
                for i, entry in enumerate(own)]
        return [*made, {**other, **{field: float(np.exp(np.log(values).mean())) for field, values in
                                    tables[part].items()}}]

    known = [{"arch": arch, "engine": names[0], "scheme": scheme,
              **{field: float(values[i, j, k]) for field, values in kernels.items()}}
             for i, arch in enumerate(figures.arches) for j, names in enumerate(figures.names)
             for k, scheme in enumerate(figures.schemes)
             if any((one["arch"], one["engine"], one["scheme"]) == (arch[0], names[0], scheme)
                    for one in start["kernels"])]
    known += [{**one, "arch": [], **{field: float(np.exp(np.mean([np.log(each[field]) for each in known if (
        each["engine"], each["scheme"]) == (one["engine"], one["scheme"])]))) for field in kernels}}
        for one in known if one["arch"] == figures.arches[-1]]
    changed = [{"engine": engine, "version": version,
                **{field: float(values[i]) for field, values in tables["release"].items()}}
               for i, (engine, version) in enumerate(figures.releases)]
    return msgspec.convert({
        "source": "aiconfigurator-core 0.12 (Apache-2.0), systems/silicon_sample.csv: measured serving points",
        "rows": rows, "spread": spread,
        "common": {**{field: float(values[0]) for field, values in tables["common"].items()}, **start["fixed"]},
        "generations": entries("generation", start["generations"], {"arch": []}),
        "engines": entries("engine", start["engines"], {"names": ["any"], "reserved": 0.0, "stream": 0.01}),
        "kernels": known, "releases": changed, "intervals": intervals}, Efficiency)


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
    for part in ("generations", "engines", "kernels", "releases", "intervals"):
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
    known = Figures(start)
    sample = gather(asked.points, [asked.releases], blank(start), lambda case: _index(case.device.arch, known.arches)
                    >= 0 and _index(case.engine, known.names) >= 0)
    figures = Figures(start, releases(sample))
    vector = figures.fitted(sample)
    made, kinds, systems = figures.predict(vector, sample), sample.kinds, sample.devices
    spread: dict[str, float] = {}
    names = {"together": "fit, one kind of worker", "apart": "fit, workers apart",
             "unstated": "fit, workers not stated"}
    for kind, name in names.items():
        spread |= shown(name, made, sample, kinds == kind)
    out = {}
    together = kinds == "together"
    families = np.array([str(family) for family in sample.families])

    def refitted(part: Sample) -> Any:
        found = figures.fitted(part)
        return lambda other: figures.predict(found, other)

    for name, groups in (("family", families), ("system", systems), ("half of the runs", halves(sample))):
        out[name] = left_out(refitted, sample, groups)
        spread |= shown(f"{name} left out", out[name], sample, together)
        for group in np.unique(groups) if name != "half of the runs" else ():
            shown(f"  {group}", out[name], sample, together & (groups == group))
    bands = []
    for kind in names:
        kept = kinds == kind
        inside = np.where(together[:, None], out["family"], made)
        bands += [interval(f"{kind}, measured", inside, sample, kept),
                  interval(f"{kind}, not measured", out["system"], sample, kept)]
    asked.out.write_text(written(convert(figures, vector, len(sample.cases), spread, bands)))


if __name__ == "__main__":
    main()
