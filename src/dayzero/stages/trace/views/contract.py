"""A graph as JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dayzero.errors import UsageError
from dayzero.graphs import Spot, balance, phases, spots
from dayzero.graphs.roofline import By
from dayzero.schema import Device, OpCall, OpGraph, Phase
from dayzero.schema.graph import Operation
from dayzero.stages.trace.capture.expansion import EXPANSION

_PLAIN = ("parameters", "seconds", "source", "modules", "control_flow", "layer_kinds", "operations", "stand_ins",
          "supplied", "isolation")
"""Fields of a graph that are written as they are."""


def to_contract(graph: OpGraph, *, by: By = "flops", device: Device | None = None, top: int = 20) -> dict[str, Any]:
    """What `dayzero trace --json` prints: plain lists, dicts, numbers and strings. Where no code ran the operators are
    the operations, without shapes, and their runs are counted as calls: the operators always add up to the phases."""
    plain = {name: msgspec.to_builtins(getattr(graph, name)) for name in _PLAIN}
    return {
        **plain,
        "phases": {phase.name: _phase(graph, phase) for phase in phases(graph)},
        "operators": msgspec.to_builtins(graph.operators if graph.ran else tuple(map(_row, graph.operations))),
        "parameters_text": text_parameters(graph),
        "missing": [split_missing(entry) for entry in graph.missing],
        "hot_spots": {phase.name: [_spot(spot, device) for spot in spots(graph, phase.name, by, device, top)]
                      for phase in phases(graph)},
    }


def _phase(graph: OpGraph, phase: Phase) -> dict[str, Any]:
    runs = sum(each.count for each in graph.operations if each.phase == phase.name)
    plain: dict[str, Any] = msgspec.to_builtins(phase)
    return plain if graph.ran else {**plain, "operators": runs}


def _row(operation: Operation) -> OpCall:
    """An operation that follows from its definition, in the form of a call."""
    kind = operation.variant if operation.variant == EXPANSION else operation.op  # as calls have it
    return OpCall(op=operation.op, module=operation.module, module_type="", kind=kind, count=operation.count,
                  inputs=(), outputs=(), dtype=operation.dtype, flops=operation.flops, bytes=operation.bytes,
                  phase=operation.phase)


def _spot(spot: Spot, device: Device | None) -> dict[str, Any]:
    item = spot.item
    return {"op": item.op, "kind": item.kind, "module": item.module, "count": item.count, "dtype": item.dtype,
            "detail": item.detail, "flops": item.flops, "bytes": item.bytes, "share": spot.share,
            "intensity": item.intensity, "seconds": spot.seconds, "bound": spot.bound or None,
            "balance": None if device is None else balance(device, item.dtype)}


def from_contract(data: dict[str, Any]) -> OpGraph:
    """The graph that `to_contract` wrote down. Raises UsageError for anything else."""
    try:
        missing = [f"{entry['call']} at {entry['file']}:{entry['line']}" if entry["file"] else entry["call"]
                   for entry in data["missing"]]
        graph = msgspec.convert({"modules": (), "source": "", **data, "missing": missing}, OpGraph)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"this JSON holds no trace: {error}", "give what `dayzero trace RELEASE --json` printed"
                         ) from None
    return graph if graph.operators != tuple(map(_row, graph.operations)) else _without_calls(graph)


def _without_calls(graph: OpGraph) -> OpGraph:
    """Of one whose operators were only its operations."""
    bare = {name: msgspec.structs.replace(phase, operators=0) for name, phase in graph.phases.items()}
    return msgspec.structs.replace(graph, operators=(), phases=bare) if graph.operations else graph


def split_missing(entry: str) -> dict[str, str | int]:
    """`call at file:line` -> its three parts; of what is in no place the file is empty and the line 0."""
    call, _, site = entry.rpartition(" at ")
    file, _, line = site.rpartition(":")
    if not call or not file or not line.isdecimal():
        return {"call": entry, "file": "", "line": 0}
    return {"call": call, "file": file, "line": int(line)}


def text_parameters(graph: OpGraph) -> int:
    """Parameters without those of towers: all that lies beside the largest list of layers that ran, and whatever else
    ran on text alone."""
    ran = {call.module for call in graph.operators if call.phase != "towers"}
    above = {path for module in ran for path in _above(module)}
    sizes: dict[str, int] = {}
    for node in graph.modules:
        for path in _above(node.path):
            sizes[path] = sizes.get(path, 0) + node.parameters
    lists = [node.path for node in graph.modules if node.type == "ModuleList" and node.path in above]
    if not lists:
        return graph.parameters
    text = max(lists, key=lambda path: sizes[path]).rpartition(".")[0]
    return sum(node.parameters for node in graph.modules
               if not text or node.path == text or node.path.startswith(f"{text}.") or node.path in ran)


def _above(path: str) -> Iterator[str]:
    """The paths of what the module lies in."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
