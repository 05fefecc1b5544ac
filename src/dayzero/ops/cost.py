"""What an operation of a graph costs at any workload: its axes' expressions, put into its definition."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.expression import evaluate
from dayzero.schema import Operation
from dayzero.schema.graph import Length

from .definition import OPERATORS


class Cost(NamedTuple):
    """Of all runs of an operation in one pass."""

    flops: float
    """Floating-point operations."""
    bytes: float
    """Bytes that must move at least once."""


def in_order(operation: Operation) -> dict[str, Length]:
    """The axes in the order of the definition; last what it does not have."""
    order = [*OPERATORS.get(operation.op).axes] if operation.op in OPERATORS else []
    known = {name: operation.axes[name] for name in order if name in operation.axes}
    return {**known, **operation.axes}


def axes_of(operation: Operation, *, batch: int, tokens: int, context: int = 0) -> dict[str, float]:
    """The axes of one run for `batch` sequences of `tokens` new tokens each (1 in a plain decode step) with `context`
    tokens cached. Raises ExpressionError for an axis that cannot be evaluated."""
    names = {"batch": batch, "tokens": tokens, "context": context}
    return {name: evaluate(length, names) if isinstance(length, str) else float(length)
            for name, length in in_order(operation).items()}


def cost(operation: Operation, *, batch: int, tokens: int, context: int = 0) -> Cost:
    """Flops and bytes by the definition, of all `count` runs. Raises UsageError for an operator without a definition,
    ExpressionError for an axis that cannot be evaluated."""
    definition = OPERATORS.get(operation.op)
    axes = axes_of(operation, batch=batch, tokens=tokens, context=context)
    return Cost(operation.count * definition.flops(axes), operation.count * definition.bytes(axes))
