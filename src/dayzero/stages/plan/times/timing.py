"""Seconds of a pass from what it takes at the stated rates and the shares of them that devices reach.

    class of operators = smooth max(arithmetic / share, memory / share), smooth max(a, b) = (a^3 + b^3)^(1/3)
    pass               = sum of the classes + calls + collectives

The share of arithmetic falls with few rows: it is share x rows / (rows + rows at half). Figures and terms may be
arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dayzero.data.efficiency import Common

from .terms import CLASSES, Terms, Value

Figures = Any
"""`Generation` or `EngineFigures`, or the same names with an array of figures, one for each pass."""
MICRO = 1e-6


def smooth_max(first: Value, second: Value) -> Value:
    """Near the larger of two; where they are alike some more than either, for neither hides the other in full."""
    return np.cbrt(first * first * first + second * second * second)


def pass_seconds(terms: Terms, generation: Figures, engine: Figures, common: Common | Figures, *, prefill: bool,
                 narrow: Value) -> Value:
    """Seconds of one pass. `narrow`: 1 where weights have at most 8 bits, else 0."""
    busy: Value = terms.sent / generation.link + terms.latency
    for kind in CLASSES:
        rows = {"linear": terms.rows, "expert": terms.expert_rows}.get(kind, 1.0)
        rate, moved = getattr(terms, f"{kind}_rate"), getattr(terms, f"{kind}_bytes")
        if kind in ("cache", "latent"):
            moved = moved * (1 + narrow * (engine.cache_item - 1))
        seconds = class_seconds(kind, rate, moved, generation, rows=rows, prefill=prefill)
        if kind in ("cache", "latent") and not prefill:
            seconds = seconds * engine.cache_factor
        busy = busy + (seconds * (1 + terms.whole_experts * (common.imbalance - 1)) if kind == "expert" else seconds)
    busy = busy + MICRO * (
        terms.reduces * generation.reduce_call + terms.reduce_steps * generation.reduce_step
        + terms.exchanges * common.exchange_call + terms.far * common.far_call)
    if prefill:
        called = terms.operators * prefill_call(generation, engine) + terms.expert_layers * engine.prefill_expert
        return (busy + MICRO * called) * engine.prefill_factor
    return busy + MICRO * (terms.operators * decode_call(generation, engine)
                           + terms.expert_layers * generation.expert_call)


def class_seconds(kind: str, rate: Value, moved: Value, generation: Figures, *, rows: Value, prefill: bool) -> Value:
    """Seconds of the operators of a class, from those of its arithmetic and memory at the stated rates. `rows`: that
    meet one matrix."""
    moved = moved / getattr(generation, f"{kind}_bytes")
    if kind == "pointwise":
        return moved
    if kind in ("linear", "expert"):
        rate = rate / getattr(generation, f"{kind}_rate") * (1 + getattr(generation, f"{kind}_rows") / rows)
    elif kind == "state":
        rate = rate / generation.state_rate
    else:
        rate = rate / getattr(generation, f"{kind}_rate_{'prefill' if prefill else 'decode'}")
    return smooth_max(rate, moved)


def decode_call(generation: Figures, engine: Figures) -> Value:
    """Microseconds of a product with weights in a decode step, whatever its size."""
    return generation.operator_call * engine.operator_factor


def prefill_call(generation: Figures, engine: Figures) -> Value:
    """Microseconds of a product with weights in a prefill pass, whatever its size."""
    return generation.prefill_factor * engine.prefill_call
