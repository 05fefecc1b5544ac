"""Speed of the planner on one core: layouts and loads a second, the whole search for a trillion-parameter card on 256
devices in a cold process, and what each part of it takes.

    python benchmarks/bench_plan.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from dayzero.resolve import resolve_target
from dayzero.schema import ModelSpec, Target
from dayzero.stages.plan.choice.answers import rate_changes, trade_offs
from dayzero.stages.plan.choice.rank import ranked
from dayzero.stages.plan.search import Search
from dayzero.stages.plan.space import every, judge
from dayzero.stages.read import read
from dayzero.what_if import what_if

ROOT = Path(__file__).parent.parent
CARD = ROOT / "examples" / "cards" / "kimi-k3.toml"
TARGET = ROOT / "examples" / "targets" / "h200-2x8.toml"
ROUNDS = 5
LOADS = 16
OTHERS = "Calculon 388 evaluations/s (its llm-validation), aiconfigurator 0.12 17-61 rows/s (its cli, three engines)"


def timed(what: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, float]:
    """(median seconds, spread of the rounds): of this process on one core, whatever else the machine does."""
    seconds = []
    for _ in range(ROUNDS):
        started = clock()
        what()
        seconds.append(clock() - started)
    return median(seconds), (max(seconds) - min(seconds)) / median(seconds)


def rows_a_second(model: ModelSpec, target: Target) -> None:
    """Every layout that there is, at one load and at many."""
    search, world = Search(model, target, None), target.cluster.world_size
    whole = every(model, world)
    legal = whole.take(judge(model, target.engine, whole).legal)
    for loads in (1, LOADS):
        some = legal.take(np.tile(np.arange(len(legal)), loads))
        load = np.repeat(2 ** np.arange(loads) * 8, len(legal))
        workload = msgspec.structs.replace(target.workload, concurrency=load)
        on = msgspec.structs.replace(target, workload=workload)
        seconds, spread = timed(partial(search.evaluated, on, some))
        print(f"evaluation: {len(some):,} rows ({len(legal):,} layouts x {loads} loads) in {seconds:.3f} s "
              f"(spread {spread:.0%}): {len(some) / seconds:,.0f} rows/s")
    print(f"others, on one core: {OTHERS}")


def parts(model: ModelSpec, target: Target) -> None:
    """What the search spends its time on."""
    search = Search(model, target, None)
    judged = search.judged(target)
    legal = judged.layouts.take(judged.legal)
    found = search.evaluated(target, legal)
    order = ranked(found, target.limits)
    for name, what in (
            ("all layouts, judged", lambda: search.judged(target)),
            ("figures", lambda: search.evaluated(target, legal)),
            ("trade-offs over loads", lambda: trade_offs(target, found, search.evaluated)),
            ("other rates", lambda: rate_changes(target, found, search.evaluated, order)),
            ("smallest cluster (where asked for)", search.smallest)):
        seconds, spread = timed(what)
        print(f"{name}: {seconds:.3f} s (spread {spread:.0%})")


def cold(target: Path, runs: Path) -> None:
    """A process of its own for each search."""
    command = [sys.executable, "-m", "dayzero", "plan", str(CARD), "-t", str(target), "--runs", str(runs), "--force"]

    def search() -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=runs)

    seconds, spread = timed(search, time.perf_counter)
    print(f"cold process, card to plan: {seconds:.2f} s (median of {ROUNDS}, spread {spread:.0%})")


def main() -> None:
    """All of it, and processes that are started, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        path = what_if(TARGET, {"cluster.nodes": 32, "workload.concurrency": 512}, Path(folder))
        model, target = read(str(CARD)).model, resolve_target(path)
        print(f"{CARD.stem} on {target.cluster.world_size} x {target.cluster.device.name}, one core")
        rows_a_second(model, target)
        parts(model, target)
        cold(path, Path(folder))


if __name__ == "__main__":
    main()
