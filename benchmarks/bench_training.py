#!/usr/bin/env python3
"""Errors of predicted training steps and peaks of memory, with the shipped shares and with models and sources left out.

    bench_training.py TRAINING.csv --releases DIR [--memory MEMORY.csv] [--quick]

Steps with the shipped shares are those of the fit (in-sample). Left out: each model, or each source, is predicted by
what is fitted without it on any device. Intervals: the share of steps that they hold. `--quick` leaves nothing out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.fit_training import Sample, left_out, ratios, samples, told

from dayzero.data.training import Generation, generations
from dayzero.errors import DayzeroError, NotPossible
from dayzero.score_train import Room, Trainable, peak


def inside(one: Generation, taken: Sequence[Sample], found: Sequence[float]) -> str:
    """`intervals hold 91 %`."""
    held = [1 / one.within(sample.point.model.mixes_experts) <= ratio <= one.within(sample.point.model.mixes_experts)
            for sample, ratio in zip(taken, found, strict=True)]
    return f"intervals hold {sum(held) / len(held):.1%}"


def by_source(taken: Sequence[Sample], found: Sequence[float]) -> None:
    """A line for each source."""
    groups: dict[str, list[float]] = defaultdict(list)
    for sample, ratio in zip(taken, found, strict=True):
        groups[sample.source].append(ratio)
    for source, some in groups.items():
        print("   ", told(source, some))


def steps(known: Sequence[Sample], quick: bool) -> None:
    """Of each generation of devices."""
    for one in generations()[:-1]:
        taken = [sample for sample in known if sample.arch in one.archs]
        found = ratios(taken, one.reached)
        print(f"{told(f'{one.name}, in-sample', found)}  {inside(one, taken, found)}")
        by_source(taken, found)
        for name in () if quick else ("model", "source"):
            apart = left_out(one, known, lambda sample, name=name: sample.name if name == "model" else sample.source)
            print(f"  {told(f'{one.name}, {name} left out', apart)}  {inside(one, taken, apart)}", flush=True)


def regret(known: Sequence[Sample]) -> None:
    """By how much the way that is predicted to be fastest is slower than the one that was, of those measured for one
    model, batch and number of devices."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for sample in known:
        setup, reached = sample.point.setup, sample.point.generation.reached
        key = (sample.source, sample.name, setup.scheme, setup.global_batch, setup.sequence, setup.layout.world_size,
               sample.point.cluster.device.name)
        groups[key].append((ratios([sample], reached)[0] * sample.measured, sample.measured))
    lost = sorted(min(ways)[1] / min(real for _, real in ways) - 1 for ways in groups.values() if len(set(ways)) > 1)
    ninth = lost[int(0.9 * (len(lost) - 1))]
    print(f"regret of the way chosen: {len(lost)} workloads, median {statistics.median(lost):.1%}, p90 {ninth:.1%}, "
          f"worst {lost[-1]:.1%}")


def memory(rows: Sequence[dict[str, str]], releases: Path) -> None:
    """Peaks, and whether it is told that they fit."""
    models, errors, bounded, labels = Trainable([releases]), [], [], []
    for row in rows:
        if not row.get("kind", "").startswith("training"):
            continue
        try:
            room: Room = peak(row, models)
        except (DayzeroError, NotPossible):
            continue
        measured = float(next(row[key] for key in row if "peak" in key))
        errors.append(room.peak / measured - 1)
        bounded.append(room.least <= measured <= room.most)
        labels.append((row["oom"] == "False", room.fits))
    wrong = sum(fits is not None and fits != truth for truth, fits in labels)
    sizes = [abs(error) for error in errors]
    print(f"peaks: n {len(errors)}  MAPE {100 * statistics.mean(sizes):.1f} %  median "
          f"{100 * statistics.median(sizes):.1f} %  bias {100 * statistics.mean(errors):+.1f} %; bounds hold "
          f"{sum(bounded)}; fits: {wrong} wrong, {sum(fits is None for _, fits in labels)} not told")


def main() -> None:
    """Read, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path, nargs="?")
    parser.add_argument("--releases", type=Path)
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if not asked.points or not asked.releases:
        print("skipped: needs a table of measured steps and a folder of releases as arguments")
        return
    with asked.points.open(newline="") as file:
        known = samples(list(csv.DictReader(file)), asked.releases)
    steps(known, asked.quick)
    regret(known)
    if asked.memory:
        with asked.memory.open(newline="") as file:
            memory(list(csv.DictReader(file)), asked.releases)


if __name__ == "__main__":
    main()
