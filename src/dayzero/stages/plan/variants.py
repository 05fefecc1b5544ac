"""The same release in other precisions of its weights, each with its best layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dayzero.data.precisions import precision
from dayzero.placement.precision import in_precision
from dayzero.schema import Estimate, Layout, ModelSpec, Target, Variant


class Best(NamedTuple):
    """The best layout for a model, if any fits."""

    layout: Layout
    """The degrees."""
    ttft_s: Estimate
    """Time to the first token."""
    tpot_s: Estimate
    """Time for each further token."""
    tokens_per_s: Estimate
    """Output tokens a second of the whole cluster."""
    max_sequences: int
    """Sequences of full length that fit."""


def variants(model: ModelSpec, target: Target, best: Callable[[ModelSpec], Best | None]) -> tuple[Variant, ...]:
    """One for each precision that the workload names, in its order."""
    return tuple(_variant(name, model, best) for name in target.workload.precisions)


def _variant(name: str, model: ModelSpec, best: Callable[[ModelSpec], Best | None]) -> Variant:
    made = in_precision(model, precision(name))
    found = best(made)
    return Variant(
        precision=name, released=made.families == model.families, checkpoint_bytes=made.checkpoint_bytes,
        layout=found.layout if found else None, ttft_s=found.ttft_s if found else None,
        tpot_s=found.tpot_s if found else None, tokens_per_s=found.tokens_per_s if found else None,
        max_sequences=found.max_sequences if found else 0)
