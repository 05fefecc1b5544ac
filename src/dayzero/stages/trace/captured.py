"""What one run of a model leaves: its operator calls in order, and which layers need not run because others are the
same. No torch."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.schema.graph import PhaseName

Shapes = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """One operator call."""

    op: str
    """Operator, such as aten.mm."""
    place: str
    """Dotted path of the innermost module that was running, with all numbers; empty: the model itself."""
    visit: int
    """How often that module had been entered before in this run: 0 in its first forward."""
    functions: tuple[str, ...]
    """Functions between that module's forward and the operator, innermost first."""
    kind: str
    """What an engineer calls it; see data/operators.toml."""
    inputs: Shapes
    """Shapes of the tensor arguments, parameters among them."""
    outputs: Shapes
    """Shapes of the tensor results."""
    dtype: str
    """dtype of the first tensor argument, such as bf16."""
    flops: int
    """Counted from the shapes."""
    bytes: int
    """Read and written, each call by itself."""


class Captured(NamedTuple):
    """One run of the model."""

    phase: PhaseName
    """prefill or decode."""
    batch: int
    """Sequences."""
    tokens: int
    """New tokens of each."""
    context: int
    """Tokens of each in the cache."""
    calls: tuple[Call, ...]
    """In the order in which they were made."""
    repeats: dict[str, tuple[str, ...]]
    """Path of a layer that ran -> paths of the layers that make the same calls and did not run."""
