"""Ways to train that the planner evaluates in a second of one core, counted as processor time: a mixture of experts of
64 layers on 256 devices.

    python benchmarks/bench_plan_training.py [RELEASE TARGET.toml]

With a release and a target: the whole search of these.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.plan_models import sparse, target

from dayzero.data.training import generation
from dayzero.resolve import resolve_target
from dayzero.schema import ModelSpec, Target
from dayzero.stages.plan import plan
from dayzero.stages.plan.training.evaluate import Evaluator
from dayzero.stages.plan.training.space import legal, ways
from dayzero.stages.read import read

ROUNDS = 5


def asked() -> tuple[ModelSpec, Target]:
    """The release and target of the command line, or those made here."""
    if len(sys.argv) > 2:
        return read(sys.argv[1], metadata_only=True).model, resolve_target(Path(sys.argv[2]), measured=None)
    return (sparse(layers=64, experts=256, top_k=8),
            target(8, 32, kind="train", global_batch=2048, input_tokens=4096))


def main() -> None:
    """Medians of a few rounds, each with nothing kept from the one before."""
    model, on = asked()
    spaces, evaluations, plans = [], [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        every, _ = ways(model, on, legal(model, on)[0])
        spaces.append(time.process_time() - started)
        started = time.process_time()
        Evaluator(model, on.cluster, generation(on.cluster.device.arch).reached).evaluate(every)
        evaluations.append(time.process_time() - started)
        started = time.process_time()
        found = plan(model, on)
        plans.append(time.process_time() - started)
    spread = (max(evaluations) - min(evaluations)) / median(evaluations)
    print(f"{len(every):,} ways: made in {median(spaces):.2f} s, evaluated in {median(evaluations):.2f} s (median of "
          f"{ROUNDS}, spread {spread:.0%}): {len(every) / (median(spaces) + median(evaluations)):,.0f} ways/s")
    rate = found.evaluated / median(plans)
    print(f"whole plan: {found.evaluated:,} ways in {median(plans):.2f} s: {rate:,.0f} ways/s")


if __name__ == "__main__":
    main()
