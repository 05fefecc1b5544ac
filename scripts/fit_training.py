#!/usr/bin/env python3
"""Fit what training reaches of stated rates to a table of measured steps, and write data/training.toml.

    fit_training.py POINTS.csv --releases DIR [--write]

One set of shares for each generation of devices, by damped least squares on log(predicted / measured), with wide
priors around common values so that what no point tells stays there; sources count by the square root of their points.
Prints the errors, those of each source, and with a source or a model left out.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from dayzero.data.training import WITHIN, Generation, Reached, generations, grouped_since
from dayzero.errors import DayzeroError, NotPossible
from dayzero.score_train import Point, Trainable, point
from dayzero.stages.plan.training import Work, token_flops, whole, work

PRIOR = Reached(
    matrix=0.75, matrix8=0.6, matrix4=0.45, surface=0.8, attention=0.5, scores=0.6, grouped=0.7, before=0.7, scan=0.5,
    pointwise=0.6, cast=0.6, routed=0.4, inside=0.7, network=0.6, dispatch=0.5, dispatch_network=0.5, exposed=0.5,
    launch=1e-5, launch_expert=1e-3, kernel=3e-6, message=15e-6, step=0.005)
"""Common values: large products reach three quarters, streaming kernels and links more than half."""
PRIORS = {"materialised": {"exposed": 1.0, "launch": 2e-5, "message": 2e-5}}
"""Of the oldest generation, whose points are from stacks that start each kernel from the host and hide nothing."""
WIDTH = 0.5
"""Standard deviation of the logarithm of a value around its prior, in units of a point's error of 0.1."""
KIN = dict.fromkeys(("hopper", "blackwell", "blackwell-ultra"), ("sm_90", "sm_100", "sm_103"))
"""What is fitted together first, by generation: too few models were measured on one alone."""
FOLDS = 8
"""Groups that models are left out in where there are more of them than that."""
NINTH = 0.9
"""Share of the steps that an interval should hold."""
NEAR = 0.2
"""Width around what was fitted together."""
MOST = {"matrix": 0.92, "matrix8": 0.92, "matrix4": 0.9, "attention": 0.85,
        **dict.fromkeys(("surface", "cast", "inside", "network", "dispatch", "dispatch_network"), 3.0)}
"""Largest values, 1 where none is given; what computing can hide may seem faster than stated."""


class Sample(msgspec.Struct):
    """A point with its work and what was measured."""

    point: Point
    made: Work
    measured: float
    source: str
    name: str

    @property
    def arch(self) -> str:
        """Of the device."""
        return self.point.cluster.device.arch


def samples(rows: Sequence[dict[str, str]], folder: Path) -> list[Sample]:
    """The rows that can be predicted and state a time, a rate or operations."""
    models, found = Trainable([folder]), []
    for index, row in enumerate(rows):
        try:
            one = point(index, row, models)
        except (DayzeroError, NotPossible):
            continue
        if "(" in row["gpu"]:  # a variant with other clocks or memory than the device that is described
            continue
        step, rate, flops = (_value(row[key]) for key in ("step_time_s", "tokens_per_sec_per_gpu", "tflops_per_gpu"))
        if not step and not rate and flops:
            rate = flops * 1e12 / token_flops(one.model, one.setup.sequence, drafts=one.drafts,
                                              frozen=one.setup.frozen)
        if not step and rate:
            step = one.setup.tokens / rate / one.setup.layout.world_size
        if step:
            source = re.split(r"@| \[", row["source"])[0]
            found.append(Sample(one, work(one.model, one.setup, one.cluster, drafts=one.drafts), step, source,
                                one.model.name))
    return found


def _value(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def fit(taken: Sequence[Sample], prior: Reached, rounds: int = 25, width: float = WIDTH) -> Reached:
    """The shares that predict the samples best."""
    names = list(prior.__struct_fields__)
    centre = np.log([getattr(prior, name) for name in names])
    counts = Counter(one.source for one in taken)
    weights = np.array([counts[one.source] ** -0.25 for one in taken])
    values, damping = centre.copy(), 1.0

    def off(at: np.ndarray) -> np.ndarray:
        reached = reached_at(names, at)
        errors = np.array([np.log(float(whole(one.made, one.point.setup, reached).seconds) / one.measured)
                           for one in taken])
        kept = np.sqrt(np.minimum(1.0, 0.25 / np.maximum(np.abs(errors), 1e-9)))  # beyond 25 % an error counts linearly
        return np.concatenate([weights * kept * errors / 0.1, (at - centre) / width])

    now = off(values)
    for _ in range(rounds):
        slopes = np.stack([(off(values + 1e-4 * unit) - now) / 1e-4 for unit in np.eye(len(names))], axis=1)
        while True:
            step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(names)), -slopes.T @ now)
            then = off(values + step)
            if then @ then < now @ now or damping > 1e6:
                break
            damping *= 4
        gain = (now @ now - then @ then) / (now @ now)
        if gain <= 0:
            break
        values, now, damping = values + step, then, damping / 3
        if gain < 1e-4:
            break
    return reached_at(names, values)


def reached_at(names: Sequence[str], values: np.ndarray) -> Reached:
    """The shares of logarithms, at most what is possible."""
    return Reached(**{name: float(min(np.exp(value), MOST.get(name, 1.0)))
                      for name, value in zip(names, values, strict=True)})


def ratios(taken: Sequence[Sample], reached: Reached) -> list[float]:
    """Predicted / measured of each."""
    return [float(whole(one.made, one.point.setup, reached).seconds) / one.measured for one in taken]


def spreads(taken: Sequence[Sample], found: Sequence[float]) -> tuple[float, float]:
    """(models without experts, with experts): standard deviations of a normal law that has nine tenths of the
    logarithms of the ratios, each predicted without its model, as near to 0."""
    kinds = [[abs(float(np.log(ratio))) for one, ratio in zip(taken, found, strict=True)
              if one.point.model.mixes_experts is experts] for experts in (False, True)]
    dense, sparse = (float(np.quantile(kind, NINTH)) / WITHIN if len(kind) > 1 else 0.0 for kind in kinds)
    return dense or 1.5 * sparse, sparse or 1.5 * dense


def told(name: str, found: Sequence[float]) -> str:
    """A line of errors of the rates (measured / predicted), as the scorer counts operations a second, and of times."""
    errors = [abs(1 - ratio) for ratio in found]
    return (f"{name}: n {len(found)}  MAPE {100 * statistics.mean(errors):.1f} %  median "
            f"{100 * statistics.median(errors):.1f} %  bias {100 * (statistics.mean(found) - 1):+.1f} %")


def fitted(one: Generation, known: Sequence[Sample], rounds: int = 25) -> Reached:
    """The shares of a generation from all samples that are given; of those of alike devices only these too."""
    prior, width = PRIOR, WIDTH
    if one.name == "ampere":
        prior = msgspec.structs.replace(PRIOR, **PRIORS["materialised"])
    if one.name in KIN:  # alike devices: first together, then each near to that
        prior, width = fit([sample for sample in known if sample.arch in KIN[one.name]], prior, rounds), NEAR
    taken = [sample for sample in known if sample.arch in one.archs]
    return fit(taken, prior, rounds, width) if taken else prior


def left_out(one: Generation, known: Sequence[Sample], key: Callable[[Sample], str]) -> list[float]:
    """Ratios of a generation's samples in order, each predicted by what is fitted without its group on any device;
    groups are left out together where there are many."""
    taken = [sample for sample in known if sample.arch in one.archs]
    names = sorted({key(sample) for sample in taken})
    fold = {name: number % FOLDS if len(names) > FOLDS + 2 else number for number, name in enumerate(names)}
    found = dict[int, float]()
    for number in sorted(set(fold.values())):
        out = {name for name, other in fold.items() if other == number}
        reached = fitted(one, [sample for sample in known if key(sample) not in out], 8)
        places = [place for place, sample in enumerate(taken) if key(sample) in out]
        found |= dict(zip(places, ratios([taken[place] for place in places], reached), strict=True))
    return [found[place] for place in range(len(taken))]


def written(entries: Sequence[tuple[Generation, Reached, tuple[float, float], int]]) -> str:
    """data/training.toml."""
    lines = ["# What training reaches of stated rates, by generation of devices: written by scripts/fit_training.py.",
             "# The last entry is for all others. Fields: data/training.py. Network: one port for each device, as the",
             "# vendor's systems have.", "",
             f'grouped_since = "{grouped_since()}"', ""]
    for known, reached, spread, count in entries:
        lines += ["[[generations]]", f'name = "{known.name}"', f"archs = {msgspec.json.encode(known.archs).decode()}",
                  f"spread = {spread[0]:.3f}", f"spread_experts = {spread[1]:.3f}", f"points = {count}",
                  f"network = {known.network:.3g}",
                  f'source = "{known.source}"', "[generations.reached]",
                  *(f"{name} = {getattr(reached, name):.4g}" for name in reached.__struct_fields__), ""]
    return "\n".join(lines)


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=Path)
    parser.add_argument("--releases", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true", help="leave nothing out")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    with asked.points.open(newline="") as file:
        known = samples(list(csv.DictReader(file)), asked.releases)
    entries = []
    for one in generations()[:-1]:
        if asked.only and one.name != asked.only:
            continue
        taken = [sample for sample in known if sample.arch in one.archs]
        reached = fitted(one, known)
        found = ratios(taken, reached)
        print(told(one.name, found))
        print("   ", {name: float(f"{getattr(reached, name):.3g}") for name in reached.__struct_fields__})
        groups: dict[str, list[float]] = defaultdict(list)
        for sample, ratio in zip(taken, found, strict=True):
            groups[sample.source].append(ratio)
        for source, some in groups.items():
            print("   ", told(source, some))
        apart = found
        if not asked.quick:
            print("   ", told("source left out", left_out(one, known, lambda sample: sample.source)))
            apart = left_out(one, known, lambda sample: sample.name)
            print("   ", told("model left out", apart), flush=True)
        entries.append((one, reached, spreads(taken, apart), len(taken)))
    if asked.write:
        last = generations()[-1]
        names = PRIOR.__struct_fields__
        newer = [reached for _, reached, _, _ in entries[1:]]
        middle = Reached(**{name: float(np.exp(np.mean([np.log(getattr(one, name)) for one in newer])))
                            for name in names})
        widest = [1.5 * max(spread[kind] for _, _, spread, _ in entries[1:]) for kind in (0, 1)]
        entries.append((last, middle, (widest[0], widest[1]), 0))
        Path("src/dayzero/data/training.toml").write_text(written(entries))


if __name__ == "__main__":
    main()
