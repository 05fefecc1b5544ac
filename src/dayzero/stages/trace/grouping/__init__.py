"""From operator calls to what an engineer names: linear, attention, norm, router, experts ...

Three steps: names say which calls belong together (`scopes`), then the structure of what is left does (`structure`),
then each group's axes are read off its shapes (`axes`). Every call ends in exactly one group. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from dayzero.data.operators import operators
from dayzero.schema import ModelSpec
from dayzero.stages.trace.capture.captured import Captured

from .axes import Reader
from .group import Axis, Group, Grouped, Terms
from .scopes import Scopes
from .structure import Structure

__all__ = ["Axis", "Group", "Grouped", "Terms", "group"]


def group(captured: Captured, types: Mapping[str, str], spec: ModelSpec) -> Grouped:
    """The operations of one run, in the order of their first calls. `types`: class name of every module, by path."""
    table = operators()
    structure = Structure(table, types, Scopes(table, types), spec.hidden_size)
    reader = Reader(table, captured, types, spec)
    groups = [reader.group(key, calls) for key, calls in structure.collect(captured.calls).items()]
    return Grouped(captured, tuple(groups))
