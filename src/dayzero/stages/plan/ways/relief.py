"""Layouts that lack memory, with weights and cache outside of the devices where the target says how fast these are to
reach. docs/numbers.md, section Weights and cache outside of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.ops import distinct_experts
from dayzero.placement import split_layers
from dayzero.placement.many import Layouts
from dayzero.placement.memory import device_bytes, sequences_per_replica
from dayzero.placement.split import is_expert, stage_bytes
from dayzero.schema import Candidate, Layout, ModelSpec, Offload, Target
from dayzero.stages.plan.candidate import DECODING, WAITING
from dayzero.stages.plan.evaluate import Evaluated
from dayzero.stages.plan.times.work import Step, decode_step, expert_rows, prefill_step

from .offload import Held, offload

ROOMY = 2**50
"""Bytes of a device that holds everything, whose times are those without what is moved."""
MOVING = "weights and cache from outside"
"""What the time of moving is called."""
MOST = 200
"""Layouts that are looked at: those that lack least."""
Evaluate = Callable[[Target, Layouts], Evaluated]


class Moved(NamedTuple):
    """What a layout keeps outside of its devices."""

    noun: Offload
    """For the plan."""
    decode_s: float
    """Seconds that a token takes longer."""
    prompt_s: float
    """Seconds that a prompt takes longer."""
    freed: tuple[dict[str, int], ...]
    """For each stage the bytes by cause that leave a device."""


def relieved(model: ModelSpec, target: Target, found: Evaluated, evaluate: Evaluate
             ) -> tuple[Evaluated, dict[int, Moved]]:
    """The layouts, of which, where none fits, those that lack least do if moving enough out makes them, and are as much
    slower; and by row what is moved. For random arrivals nothing is."""
    device = target.cluster.device
    reached = device.host_bandwidth is not None or device.disk_bandwidth is not None
    if not reached or target.workload.arrival_rate or not len(found) or np.any(found.fits):
        return found, {}
    rows = np.argsort(found.need_bytes, kind="stable")[:MOST]
    made = {int(row): moving(model, found.layouts[int(row)], target) for row in rows}
    moved = {row: one for row, one in made.items() if one}
    if not moved:
        return found, {}
    kept = np.array(list(moved))
    times = evaluate(_roomy(target), found.layouts.take(kept))
    slower = _slower(times, list(moved.values()), target)
    return _put(found, slower, kept), moved


def _roomy(target: Target) -> Target:
    device = msgspec.structs.replace(target.cluster.device, memory_bytes=ROOMY)
    return msgspec.structs.replace(target, cluster=msgspec.structs.replace(target.cluster, device=device))


def moving(model: ModelSpec, layout: Layout, target: Target) -> Moved | None:
    """What the layout has to move; None: it cannot."""
    device, usable = target.cluster.device, target.cluster.usable_bytes
    stages = [range(*layers) for layers in split_layers(model, layout.pp)]
    causes = [device_bytes(model, layout, layers, target) for layers in stages]
    families = [family for family in model.families if is_expert(family)]
    experts = np.array([float(stage_bytes(model, layout, target.engine, layers, families)) for layers in stages])
    weights = np.array([float(one["weights"]) for one in causes]) - experts
    cache, lacking = (np.array([float(value) for value in column]) for column in (
        [one["kv_cache"] for one in causes], [sum(one.values()) - usable for one in causes]))
    decode = decode_step(target, sequences_per_replica(target.workload, layout))
    prefill = prefill_step(target)
    each, prompt = (offload(lacking, Held(experts, weights, cache, _visited(model, layout, step)), device)
                    for step in (decode, prefill))
    if not each.possible.all():
        return None
    seconds, fullest = float(each.bound_s.sum()), int(np.argmax(each.host_bytes + each.disk_bytes))
    noun = Offload(
        shares={cause: float(share[fullest]) for cause, share in each.shares.items() if share[fullest]},
        host_bytes=int(each.host_bytes[fullest]), disk_bytes=int(each.disk_bytes[fullest]),
        needed_bytes=int(each.needed_bytes[fullest]), bound_s=seconds / target.workload.acceptance_length)
    left = {"weights": each.shares["experts"] * experts + each.shares["weights"] * weights,
            "kv_cache": each.shares["cache"] * cache}
    freed = tuple({cause: int(sizes[stage]) for cause, sizes in left.items()} for stage in range(len(stages)))
    return Moved(noun, noun.bound_s, float(prompt.bound_s.sum()) * prefill.passes, freed)


def outside(candidate: Candidate, moved: Moved) -> Candidate:
    """The candidate with what is moved: less on its devices, more time."""
    kept = tuple({cause: size - freed.get(cause, 0) for cause, size in stage.items()}
                 for stage, freed in zip(candidate.bytes_per_stage, moved.freed, strict=True))
    return msgspec.structs.replace(
        candidate, offload=moved.noun, bytes_per_stage=kept,
        bytes_per_device=max(kept, key=lambda causes: sum(causes.values())),
        decode_seconds=_longer(candidate.decode_seconds, moved.decode_s, candidate.tpot_s.value),
        prefill_seconds=_longer(candidate.prefill_seconds, moved.prompt_s, candidate.ttft_s.value))


def _longer(causes: dict[str, float], seconds: float, whole: float) -> dict[str, float]:
    """Seconds by cause with those of moving, which were in the last of them where that makes the sum whole."""
    made = causes | {MOVING: seconds}
    rest = next((cause for cause in (DECODING, WAITING) if cause in made), None)
    if rest:
        made[rest] = max(0.0, made[rest] - max(0.0, sum(made.values()) - whole))
    return dict(sorted(made.items(), key=lambda item: -item[1]))


def _visited(model: ModelSpec, layout: Layout, step: Step) -> Value:
    """Share of the routed experts that a pass needs."""
    block = next((block for block in model.feed_forwards.values() if block.experts), None)
    if block is None:
        return 1.0
    return distinct_experts(block.choices, block.top_k, expert_rows(layout, step.rows)) / block.choices


def _slower(times: Evaluated, moved: list[Moved], target: Target) -> Evaluated:
    """The figures with what moving costs. Throughput falls as the time of a token rises."""
    decode, prompt = np.array([one.decode_s for one in moved]), np.array([one.prompt_s for one in moved])
    outside = np.array([one.noun.host_bytes + one.noun.disk_bytes for one in moved])
    longer = times.tpot_s / (times.tpot_s + decode)
    return replace(
        times, fits=np.ones(len(times), dtype=bool), need_bytes=times.need_bytes - outside,
        max_sequences=np.full(len(times), target.workload.concurrency), ttft_s=times.ttft_s + prompt,
        tpot_s=times.tpot_s + decode, tokens_per_s=times.tokens_per_s * longer,
        ttft_between=times.ttft_between + prompt, tpot_between=times.tpot_between + decode,
        tokens_between=times.tokens_between * longer)


def _put(found: Evaluated, some: Evaluated, rows: Value) -> Evaluated:
    """The columns of `found` with those of `some` in some rows."""
    def column(old: Any, new: Any) -> Any:
        if isinstance(old, dict):
            return {key: column(old[key], new[key]) for key in old}
        if isinstance(old, Layouts):
            return old
        kept = np.array(old)
        kept[..., rows] = new
        return kept

    return replace(found, **{field.name: column(getattr(found, field.name), getattr(some, field.name))
                             for field in fields(found)})
