"""A graph in any case: of the code where it can run here, else what follows from facts."""

from __future__ import annotations

from typing import Any

from dayzero.errors import NotPossible
from dayzero.expression import ExpressionError
from dayzero.progress import SILENT, Progress
from dayzero.schema import OpGraph, Release
from dayzero.stages import trace as stage

from . import sizes
from .formula import graph

SIZES = ("batch", "tokens", "context")
"""Options of `trace` that a graph without code has as well."""


def graph_of(release: Release, *, progress: Progress = SILENT, **options: Any) -> OpGraph:
    """`trace`; where it is not possible (no torch, no class for the model, own code that is not trusted) the graph from
    operator definitions, whose `source` and `missing` say so and why. `options` are those of `trace`.

    Raises as `trace`, but for NotPossible; UsageError for sizes beyond all numbers.
    """
    try:
        return stage.trace(release, progress=progress, **options)
    except NotPossible as why:
        asked = {name: options[name] for name in SIZES if name in options}
        try:
            return sizes.told(graph(release.model, why=why.reason, **asked))
        except ExpressionError:  # lengths of axes beyond all numbers
            raise sizes.too_large(**{"batch": 1, "tokens": 64, "context": 64, **asked}) from None
