"""What one run of a model leaves: its operator calls in order, and which modules need not run because others are the
same. No torch."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dayzero.schema.graph import PhaseName

ITEM = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}
"""Bytes of a value, by the short name of its dtype."""
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
    """Path of a module that ran (a layer, a part of one, an expert) -> paths of the modules that make the same calls
    and did not run; they differ in numbers only. Repeats nest."""
    times: dict[str, int] = {}
    """Path of a module -> how many calls had been made when it first ran or was left out."""

    def copies(self, place: str) -> dict[int, int]:
        """How often the calls made at `place` are made in each layer: number of the layer (the first number of the
        path; -1: none) -> times, its own included."""
        parts = place.split(".")
        layer = next((depth for depth, part in enumerate(parts, 1) if part.isdigit()), 0)
        if not layer:
            return {-1: 1}
        paths = {place: 1}
        for depth in range(len(parts), layer - 1, -1):
            for path, times in list(paths.items()):
                for other in self.repeats.get(path, ()):
                    paths[other] = paths.get(other, 0) + times
            if depth > layer:
                merged: Counter[str] = Counter()
                for path, times in paths.items():
                    merged[path.rpartition(".")[0]] += times
                paths = dict(merged)
        return {int(path.rpartition(".")[2]): times for path, times in paths.items()}
