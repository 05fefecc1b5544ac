"""A graph in any case: of the code where it can run here, else what follows from facts."""

from __future__ import annotations

from typing import Any

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.schema import OpGraph, Release

from .formula import graph
from .tracer import trace


def graph_of(release: Release, *, batch: int = 1, tokens: int = 64, context: int = 64, progress: Progress = SILENT,
             **options: Any) -> OpGraph:
    """`trace`; where it is not possible (no torch, no class for the model, own code that is not trusted) the graph from
    operator definitions, whose `source` and `missing` say so and why. `options`: further ones of `trace`.

    Raises as `trace`, but for NotPossible.
    """
    try:
        return trace(release, batch=batch, tokens=tokens, context=context, progress=progress, **options)
    except NotPossible as why:
        return graph(release.model, batch=batch, tokens=tokens, context=context, why=why.reason)
