"""A real torch.export of the first layers of a model, to see where it fails first."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.schema import Noun, OpGraph, Release

if TYPE_CHECKING:
    import torch

MOST = 8
"""Layers that are exported at most."""
_TOKENS = 16
_OURS = ("torch", __name__.partition(".")[0])


class Exported(Noun, frozen=True, kw_only=True):
    """How an export went."""

    layers: int
    """First layers of the model that were exported, the others being left out."""
    kinds: tuple[str, ...]
    """Kinds of layers among them."""
    seconds: float
    """What it took, without building the model."""
    nodes: int
    """Nodes of the exported graph; 0: it failed."""
    error: str
    """What stopped it; empty: it worked."""
    place: str
    """`file:line` in the model's code where it stopped."""


def try_export(graph: OpGraph, release: Release, progress: Progress = SILENT) -> Exported:
    """Export a forward of 16 tokens through as many first layers as hold every kind, at most MOST. The library's class
    is exported, without weights; a release's own code is not run here.

    Raises NotPossible without torch and transformers, or where the library has no class for the model.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")
    if graph.isolation:
        raise NotPossible("the release's own code was traced, which is not exported",
                          "a class of the library for this model can be exported")
    from dayzero.stages.trace import construct

    progress.update("building the model for an export", 0)
    with construct.quiet():
        model = construct.build(release).model
        count, kinds = _first_layers(graph)
        kept = _truncate(model, graph, count)
        progress.update(f"exporting {kept} layers", 0)
        return _export(model, kept, kinds)


def _first_layers(graph: OpGraph) -> tuple[int, tuple[str, ...]]:
    """As many first layers as hold every kind, and which they hold."""
    firsts = {kind.kind: min(kind.layers) for kind in graph.layer_kinds if kind.layers}
    count = min(max(firsts.values(), default=0) + 1, MOST)
    return count, tuple(kind for kind, first in firsts.items() if first < count)


def _truncate(model: torch.nn.Module, graph: OpGraph, count: int) -> int:
    """Leave the first layers in the list of layers; how many it has then."""
    from dayzero.graphs import layer_list

    path = layer_list(graph)
    if path is None:
        return sum(len(kind.layers) for kind in graph.layer_kinds)
    layers: Any = model.get_submodule(path)
    del layers[count:]
    return len(layers)


def _export(model: torch.nn.Module, layers: int, kinds: tuple[str, ...]) -> Exported:
    import torch

    ids = torch.zeros((1, _TOKENS), dtype=torch.int64, device="meta")
    start = time.perf_counter()
    nodes, error, place = 0, "", ""
    try:
        with torch.no_grad():
            program = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}, strict=False)
        nodes = len(program.graph.nodes)
    except Exception as caught:  # whatever the exporter, the library and the model raise is the result
        error = f"{type(caught).__name__}: {(str(caught).strip().splitlines() or [''])[0]}"[:500]
        place = _place(caught)
    return Exported(layers=layers, kinds=kinds, seconds=round(time.perf_counter() - start, 2), nodes=nodes, error=error,
                    place=place)


def _place(error: BaseException) -> str:
    """The innermost place outside torch and this program."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        if name.partition(".")[0] not in _OURS:
            found = f"{name.replace('.', '/')}.py:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
