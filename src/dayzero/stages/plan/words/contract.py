"""What `dayzero plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dayzero.schema import Candidate, Estimate, Layout, Plan
from dayzero.stages.plan.training import training_contract


def _ends(estimate: Estimate, divisor: int = 1) -> dict[str, float]:
    return {name: getattr(estimate, name) / divisor for name in ("value", "low", "high")}


def _entry(one: Candidate, plan: Plan) -> dict[str, Any]:
    """One of `plans`. `step_s` is the time of a training step; null when serving."""
    return {
        "layout": msgspec.structs.asdict(one.layout), "fits": one.fits, "stages": one.stages,
        "bytes_per_device": one.bytes_per_device, "bytes_per_stage": one.bytes_per_stage,
        "usable_bytes": one.usable_bytes, "max_sequences": one.max_sequences,
        "weights_per_device": one.weights, "max_context": one.max_context,
        "ttft_s": _ends(one.ttft_s), "tpot_s": _ends(one.tpot_s),
        "tokens_per_s_per_device": _ends(one.tokens_per_s, one.layout.world_size), "step_s": None,
        "limits": [*one.limits, *plan.notes], "explanation": one.explanation, "within_limits": one.within,
        "comparison": one.comparison, "decode_seconds": one.decode_seconds, "prefill_seconds": one.prefill_seconds,
        "arrivals": msgspec.to_builtins(one.arrivals), "offload": msgspec.to_builtins(one.offload),
    }  # fmt: skip


def to_contract(plan: Plan, explain: Sequence[Layout] = ()) -> dict[str, Any]:
    """The plan as one object. `explain`: the layouts that are asked about, which get a list of their own."""
    entries = [(one.layout, _entry(one, plan)) for one in plan.candidates]
    entries += [(one.layout, training_contract(one, plan.notes)) for one in plan.training]
    rejected = [{"layout": msgspec.structs.asdict(one.layout), "rule": one.rule, "message": one.message}
                for one in plan.rejected]
    asked = [{"layout": msgspec.structs.asdict(layout),
              "rules": [one.rule for one in plan.rejected if one.layout == layout],
              "plan": next((entry for known, entry in entries if known == layout), None)} for layout in explain]
    others = {name: msgspec.to_builtins(getattr(plan, name)) for name in (
        "summary", "front", "limits", "families", "sensitivity", "smallest", "apart", "variants")}
    return {"plans": [entry for _, entry in entries], "rejected": rejected, "evaluated": plan.evaluated,
            "seconds": plan.seconds, **others, **({"explained": asked} if asked else {})}
