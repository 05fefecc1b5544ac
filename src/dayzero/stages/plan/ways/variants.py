"""The same release in other precisions of its weights, each with its best layout."""

from __future__ import annotations

from collections.abc import Callable

from dayzero.data.precisions import precision
from dayzero.placement.precision import in_precision
from dayzero.schema import Candidate, ModelSpec, Target, Variant


def variants(model: ModelSpec, target: Target, best: Callable[[ModelSpec], Candidate | None]) -> tuple[Variant, ...]:
    """One for each precision that the workload names, in its order."""
    return tuple(_variant(name, model, best) for name in target.workload.precisions)


def _variant(name: str, model: ModelSpec, best: Callable[[ModelSpec], Candidate | None]) -> Variant:
    made = in_precision(model, precision(name))
    found = best(made)
    return Variant(
        precision=name, released=made.families == model.families, checkpoint_bytes=made.checkpoint_bytes,
        layout=found.layout if found else None, ttft_s=found.ttft_s if found else None,
        tpot_s=found.tpot_s if found else None, tokens_per_s=found.tokens_per_s if found else None,
        max_sequences=found.max_sequences if found else 0)
