"""A real torch.export of the first layers of a model, to see where it fails first."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dayzero.errors import NotPossible
from dayzero.graphs import layer_list
from dayzero.progress import SILENT, Progress
from dayzero.runtime.library import file_of
from dayzero.schema import Noun, OpGraph, Release, from_json

if TYPE_CHECKING:
    import torch

    from dayzero.runtime.isolation import Limits

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


class ExportRequest(Noun, frozen=True, kw_only=True):
    """What to export."""

    release: Release
    """As it was read."""
    own: bool
    """Whether it is the release's own code."""
    path: str | None
    """Dotted path of the list of layers; None: there is none, and all is exported."""
    layers: int
    """First layers that stay in it."""
    kinds: tuple[str, ...]
    """Kinds of layers among them."""


def try_export(graph: OpGraph, release: Release, trust: Limits | None = None, progress: Progress = SILENT) -> Exported:
    """Export a forward of 16 tokens, without weights, through as many first layers as hold every kind, at most MOST, of
    the class that was traced. A release's own code runs with `trust` only, in a confined process, and with stand-ins
    for kernel libraries.

    Raises NotPossible without torch and transformers, without `trust` for own code, or where the model cannot be built.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")
    layers, kinds = _first_layers(graph)
    request = ExportRequest(release=release, own=graph.own, path=layer_list(graph), layers=layers,
                            kinds=kinds)
    if not request.own:
        return _built_and_exported(request, progress)
    if trust is None:
        raise NotPossible("the release's own code was traced, which is not run again without being trusted",
                          "add --trust-remote-code")
    from dayzero.runtime.isolation import isolated

    found, _ = isolated(f"{__name__}:confined", request, Exported, whose=f"the code of {release.name}", limits=trust,
                        readable=[Path(release.root)] if release.root else [], progress=progress)
    return found


def confined(data: bytes, progress: Progress) -> Exported:
    """In the process that may run the release's own code."""
    return _built_and_exported(from_json(data, ExportRequest), progress)


def _built_and_exported(request: ExportRequest, progress: Progress) -> Exported:
    from dayzero.stages.trace import construct

    progress.update("building the model for an export", 0)
    with construct.quiet(own=request.own):
        model = construct.build(request.release, own=request.own).model
        if request.path is not None:
            listed: Any = model.get_submodule(request.path)
            del listed[request.layers:]
        progress.update(f"exporting {request.layers} layers", 0)
        return _export(model, request.layers, request.kinds)


def _first_layers(graph: OpGraph) -> tuple[int, tuple[str, ...]]:
    """As many first layers as hold every kind, and which they hold."""
    firsts = {kind.kind: min(kind.layers) for kind in graph.layer_kinds if kind.layers}
    count = min(max(firsts.values(), default=0) + 1, MOST)
    return count, tuple(kind for kind, first in firsts.items() if first < count)


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
            found = f"{file_of(name)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
