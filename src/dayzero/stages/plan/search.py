"""The search: every layout that multiplies to the world size, judged, costed and ranked."""

from __future__ import annotations

import time

import msgspec

from dayzero.placement import blockers, layouts, split_layers
from dayzero.progress import SILENT, Progress
from dayzero.schema import Candidate, Layout, ModelSpec, OpGraph, Plan, Rejected, Target

from .candidate import Planner
from .explain import explained, summed_up
from .families import families
from .notes import notes
from .training import plan_training


def rejections(model: ModelSpec, layout: Layout, target: Target) -> list[Rejected]:
    """Every reason why the layout cannot run; empty if it can."""
    return [Rejected(layout=layout, rule=finding.rule, message=f"{finding.subject}: {finding.message}")
            for finding in blockers(model, layout, target.engine)]


def rank_key(candidate: Candidate) -> tuple[float, ...]:
    """Those that fit first: by throughput, then time to first token, each to three digits, then memory. The others by
    what they lack."""
    if not candidate.fits:
        return 1.0, float(candidate.need_bytes)
    rate, first = (float(f"{estimate.value:.3g}") for estimate in (candidate.tokens_per_s, candidate.ttft_s))
    return 0.0, -rate, first, float(candidate.need_bytes)


def plan(model: ModelSpec, target: Target, *, graph: OpGraph | None = None, top: int = 20,
         progress: Progress = SILENT) -> Plan:
    """The best `top` layouts for the model on the target, and why the others are rejected. With layouts in the target,
    those alone. `graph` tells how many operators a step has. Raises LayoutError for a layout in the target of which
    no whole number of copies makes the world size, TargetError where a rate or a link is not stated."""
    if target.workload.kind == "train":
        return summed_up(plan_training(model, target, top=top, progress=progress))
    started, world = time.perf_counter(), target.cluster.world_size
    wanted = [layout if world % layout.world_size == 0 else layout.check_world(world) for layout in target.layouts]
    if not wanted:
        wanted = list(layouts(world, model.mixes_experts))
    planner = Planner(model, target, graph)
    candidates: list[Candidate] = []
    rejected: list[Rejected] = []
    for done, layout in enumerate(wanted):
        progress.update(f"layout {layout.text}", done, len(wanted))
        reasons = rejections(model, layout, target)
        rejected += reasons
        if not reasons:
            candidates.append(planner.candidate(layout, split_layers(model, layout.pp)))
    candidates.sort(key=rank_key)
    return summed_up(Plan(
        candidates=explained(candidates, top, target), rejected=tuple(rejected), evaluated=len(wanted),
        seconds=time.perf_counter() - started, workload=msgspec.structs.asdict(target.workload),
        notes=notes(planner.costs, wanted), families=families(rejected, wanted),
    ))  # fmt: skip
