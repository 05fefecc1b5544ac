"""Layouts a second of the planner: a mixture of experts of 64 layers on 256 devices, 1 core.

    python benchmarks/bench_plan.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.plan_models import sparse, target

from dayzero.stages.plan import plan

ROUNDS = 5


def main() -> None:
    """Median of a few searches."""
    model, cluster = sparse(layers=64, experts=256, top_k=8), target(8, 32, concurrency=512)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        evaluated = plan(model, cluster).evaluated
        seconds.append(time.perf_counter() - started)
    spread = (max(seconds) - min(seconds)) / median(seconds)
    print(f"{evaluated} layouts in {median(seconds):.3f} s (median of {ROUNDS}, spread {spread:.0%}): "
          f"{evaluated / median(seconds):,.0f} layouts/s")


if __name__ == "__main__":
    main()
