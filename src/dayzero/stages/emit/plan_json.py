"""plan.json: the chosen layout for other programs to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dayzero import __version__
from dayzero.schema import Candidate, Layout, Plan, Release, Target, to_json


def plan_json(release: Release, plan: Plan, target: Target, launched: Mapping[str, Layout | None],
              launch_notes: Sequence[str]) -> str:
    """Layout, stages, bytes and estimates of the best layout and of the next three that fit. Bytes are integers, times
    are seconds. `layout` is null when nothing fits; `candidates` then holds the layouts that need the least.
    `launch` has the layout that each engine's commands start (null: it can express none that fits), and notes."""
    best = plan.best
    fitting = [candidate for candidate in plan.candidates if candidate.fits]
    nearest = sorted(plan.candidates, key=lambda candidate: candidate.need_bytes)
    document = {
        "dayzero": __version__,
        "release": {"name": release.name, "origin": release.origin, "parameters": release.model.parameters,
                    "checkpoint_bytes": release.model.checkpoint_bytes, "layers": len(release.model.layers)},
        "target": {"name": target.name, "device": target.cluster.device.name, "nodes": target.cluster.nodes,
                   "devices_per_node": target.cluster.devices_per_node, "engine": target.engine.name},
        "workload": plan.workload,
        "fits": (best or plan.trained) is not None,
        "layout": msgspec.structs.asdict(best.layout) if best else None,
        "launch": {"layouts": {engine: msgspec.structs.asdict(layout) if layout else None
                               for engine, layout in launched.items()}, "notes": launch_notes},
        "candidates": [_candidate(candidate) for candidate in (fitting or nearest)[:4]],
        "training": [msgspec.to_builtins(one) for one in plan.training[:4]],
        "rejected": [{"layout": rejected.layout.text, "rule": rejected.rule, "message": rejected.message}
                     for rejected in plan.rejected],
        "evaluated": plan.evaluated,
        "notes": plan.notes,
    }
    return msgspec.json.format(to_json(document), indent=2).decode() + "\n"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "layout": msgspec.structs.asdict(candidate.layout),
        "world_size": candidate.layout.world_size,
        "fits": candidate.fits,
        "stages": [{"stage": index, "first_layer": start, "end_layer": end, "bytes_per_device": needed}
                   for index, ((start, end), needed)
                   in enumerate(zip(candidate.stages, candidate.bytes_per_stage, strict=True))],
        "bytes_per_device": candidate.bytes_per_device,
        "need_bytes": candidate.need_bytes,
        "usable_bytes": candidate.usable_bytes,
        "max_sequences": candidate.max_sequences,
        "max_context": candidate.max_context,
        "ttft_s": candidate.ttft_s,
        "tpot_s": candidate.tpot_s,
        "tokens_per_s": candidate.tokens_per_s,
        "limits": candidate.limits,
        "explanation": candidate.explanation,
    }
