"""What grouping gives: operations of one run with axes whose lengths are still sums of products of dimensions."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.stages.trace.capture.captured import Call, Captured

Terms = tuple[tuple[int, ...], ...]
"""A length as the sum of products of dimensions, as the shapes show them: ((2, 5), (3,)) is 2 * 5 + 3."""
Axis = float | Terms
"""A length, or a number that is not one (bytes of a value)."""


class Group(NamedTuple):
    """One operation of one module, once."""

    op: str
    """Name in the registry of operators."""
    variant: str
    """Which one; empty: there is one only."""
    module: str
    """Dotted path of the module, with all numbers; empty: the model itself."""
    calls: tuple[Call, ...]
    """The calls that it consists of."""
    axes: dict[str, Axis]
    """Axis of the operator's definition -> its length."""
    dtype: str
    """dtype of the activations."""


class Grouped(NamedTuple):
    """All operations of one run."""

    captured: Captured
    """The run."""
    groups: tuple[Group, ...]
    """In the order of their first calls."""


def product(*dims: int) -> Terms:
    """The length that is the product of these dimensions."""
    return (dims,)


def value(axis: Axis) -> float:
    """Length as a number."""
    if not isinstance(axis, tuple):
        return axis
    total = 0
    for term in axis:
        size = 1
        for dim in term:
            size *= dim
        total += size
    return total
