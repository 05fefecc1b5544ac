"""The search: every layout that multiplies to the world size, judged, costed and ranked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from dayzero.errors import NotPossible
from dayzero.placement.legality import blockers
from dayzero.placement.stages import split_layers
from dayzero.progress import SILENT, Progress
from dayzero.schema import Candidate, Layout, ModelSpec, OpGraph, Plan, Rejected, Target

from .candidate import Planner
from .explain import explained

STAGES_RULE = "pipeline-stages"
"""Name of the one rule that is the search's own: more pipeline stages than layers."""


def divisors(number: int) -> list[int]:
    """Divisors, rising."""
    return [degree for degree in range(1, number + 1) if number % degree == 0]


def layouts(world_size: int, has_experts: bool) -> Iterator[Layout]:
    """Every tp * pp * dp that makes the world size; with experts also every ep that is made of whole tp groups or of
    equal parts of one."""
    for tp in divisors(world_size):
        for pp in divisors(world_size // tp):
            dp = world_size // (tp * pp)
            for ep in divisors(tp * dp) if has_experts else [1]:
                if tp % ep == 0 or ep % tp == 0:
                    yield Layout(tp=tp, pp=pp, dp=dp, ep=ep)


def rejections(model: ModelSpec, layout: Layout, target: Target) -> list[Rejected]:
    """Every reason why the layout cannot run; empty if it can."""
    reasons = [Rejected(layout=layout, rule=finding.rule, message=f"{finding.subject}: {finding.message}")
               for finding in blockers(model, layout, target.engine)]
    if layout.pp > len(model.layers):
        reasons.append(Rejected(layout=layout, rule=STAGES_RULE,
                                message=f"{layout.pp} stages, but the model has {len(model.layers)} layers"))
    return reasons


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
    no whole number of copies makes the world size, TargetError where a rate or a link is not stated, NotPossible for
    training."""
    if target.workload.kind == "train":
        raise NotPossible("training is not planned yet", "plan a workload of kind serve")
    started, world = time.perf_counter(), target.cluster.world_size
    wanted = [layout if world % layout.world_size == 0 else layout.check_world(world) for layout in target.layouts]
    if not wanted:
        wanted = list(layouts(world, any(block.experts for block in model.feed_forwards.values())))
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
    return Plan(
        candidates=explained(candidates, top), rejected=tuple(rejected), evaluated=len(wanted),
        seconds=time.perf_counter() - started, workload=msgspec.structs.asdict(target.workload),
        notes=planner.notes(),
    )  # fmt: skip
