"""The search: every layout that multiplies to the world size, judged, evaluated and ranked; the best ones in full."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement import layouts, split_layers
from dayzero.placement.many import Layouts
from dayzero.progress import SILENT, Progress
from dayzero.schema import ModelSpec, OpGraph, Plan, Target

from .candidate import Planner
from .evaluate import Evaluated, evaluate
from .explain import Counts, summed_up, told
from .families import families
from .notes import notes
from .space import judge
from .training import plan_training


def ranking(found: Evaluated) -> Value:
    """Rows, best first. Those that fit come first: by throughput, then time to first token, each to three digits, then
    memory. The others by what they lack."""
    rate, first = (np.where(found.fits, _digits(column), 0.0) for column in (found.tokens_per_s, found.ttft_s))
    return np.lexsort((found.need_bytes, first, -rate, ~found.fits))


def _digits(column: Value) -> Value:
    """Rounded to three digits."""
    unit = 10.0 ** (np.floor(np.log10(column)) - 2)
    return np.round(column / unit) * unit


def plan(model: ModelSpec, target: Target, *, graph: OpGraph | None = None, top: int = 20,
         progress: Progress = SILENT) -> Plan:
    """The best `top` layouts for the model on the target, and why the others are rejected. With layouts in the target,
    those alone. `graph` tells how many operators a step has. Raises LayoutError for a layout in the target of which
    no whole number of copies makes the world size, TargetError where a rate or a link is not stated."""
    if target.workload.kind == "train":
        return summed_up(plan_training(model, target, top=top, progress=progress))
    started, world = time.perf_counter(), target.cluster.world_size
    wanted = [layout if world % layout.world_size == 0 else layout.check_world(world) for layout in target.layouts]
    judged = judge(model, target.engine, Layouts.of(wanted or layouts(world, model.mixes_experts)))
    rejected = tuple(judged.rejected())
    progress.update("evaluating layouts", 0, len(judged.layouts))
    found = evaluate(model, target, judged.layouts.take(judged.legal), graph=graph)
    planner, order = Planner(model, target, graph), ranking(found)
    chosen = [planner.candidate(found, row, split_layers(model, int(found.layouts.pp[row]))) for row in order[:top]]
    fitting = int(found.fits.sum())
    progress.update("evaluating layouts", len(judged.layouts), len(judged.layouts))
    return summed_up(Plan(
        candidates=told(chosen, range(1, top + 1), Counts(len(found), fitting, fitting), target), rejected=rejected,
        evaluated=len(judged.layouts), seconds=time.perf_counter() - started,
        workload=msgspec.structs.asdict(target.workload), notes=notes(model, target, planner.speeds, graph),
        families=families(rejected, list(judged.layouts)),
    ))  # fmt: skip
