"""What `dayzero trace` prints: what was traced, its totals, and the views that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dayzero.graphs import by_kind, phases, spots
from dayzero.graphs.roofline import By
from dayzero.schema import Device, OpGraph, Phase
from dayzero.units import format_bytes, format_count, format_flops, format_seconds

from .columns import flop, narrow_table, ranges, section, size
from .contract import text_parameters
from .tables import control_flow_table, kind_tables, notes, operators_table
from .tree import call_tree

VIEWS = ("summary", "operators", "kinds", "tree", "control-flow", "coverage", "breaks")
"""What can be shown; summary is the totals, the layer kinds and the dearest operators."""
_LEFT_OUT = 0.001
"""Share of a phase's operations that a sum of bounds may leave out without a word."""
_SITES = 5
"""Places of control flow in the summary."""


def overview(graph: OpGraph, top: int = 10, *, views: Sequence[str] = ("summary",), by: By = "flops",
             device: Device | None = None, depth: int = 4) -> Group:
    """The headline, then each of the views in the order of VIEWS. Coverage and breaks are made by others."""
    return Group(*_headline(graph, device), *_views(graph, top, views, by, device, depth))


def _views(graph: OpGraph, top: int, views: Sequence[str], by: By, device: Device | None, depth: int
           ) -> Iterator[RenderableType]:
    names = [phase.name for phase in phases(graph)]
    if "summary" in views and "kinds" not in views and graph.layer_kinds:
        yield _kinds_table(graph)
    if "summary" in views or "operators" in views:
        yield from (operators_table(graph, phase, top, by, device, "operators" in views) for phase in names)
    if "kinds" in views:
        yield from (kind_tables(graph, phase, top, by) for phase in names)
    if "tree" in views:
        yield call_tree(graph, depth)
    if "control-flow" in views:
        yield control_flow_table(graph)
    elif "summary" in views and graph.control_flow:
        yield control_flow_table(graph, _SITES)


def _headline(graph: OpGraph, device: Device | None) -> Iterator[RenderableType]:
    text = text_parameters(graph)
    inner = f" ({text:,} of the text model)" if text != graph.parameters else ""
    calls, grouped = sum(phase.operators for phase in phases(graph)), len(graph.operations)
    yield Text.assemble((graph.source or "(source not recorded)", "bold"))
    yield from notes(graph)
    operations = f", {grouped:,} kinds of operation" if grouped else ""
    ran = f"{calls:,} operator calls{operations}" if graph.ran else f"no code ran{operations} by their definitions"
    yield Text(f"{graph.parameters:,} parameters, {format_count(graph.parameters)}{inner}; {ran}; "
               f"{graph.seconds:.1f} s")
    if graph.phases:
        yield _phases_table(graph, device)
    else:
        yield Text("no phase could be traced", "bold red")


def _phases_table(graph: OpGraph, device: Device | None) -> Group:
    right = ["batch", "new", "cached", "FLOP", "bytes", "calls", *(["at least"] if device else [])]
    table = narrow_table(["phase"], right)
    for phase in phases(graph):
        cells = [f"{phase.batch:,}", f"{phase.tokens:,}", f"{phase.context:,}", flop(phase.flops),
                 size(phase.bytes), f"{phase.operators:,}" if graph.ran else "none"]
        table.add_row(phase.name, *cells, *([_least(graph, phase, device)] if device else []))
    return section("phases, with tokens of each sequence", table, _by_definition(graph))


def _by_definition(graph: OpGraph) -> str:
    """What the operations come to, which have costs of their own; empty without operations."""
    if not graph.ran:
        return "no code ran: by the operators' definitions"
    told = []
    for phase in phases(graph):
        own = [operation for operation in graph.operations if operation.phase == phase.name]
        if own:
            told.append(f"{phase.name} {format_flops(sum(each.flops for each in own))} and "
                        f"{format_bytes(sum(each.bytes for each in own))}")
    return f"as counted call by call; by the operators' definitions {', '.join(told)}" if told else ""


def _least(graph: OpGraph, phase: Phase, device: Device) -> str:
    """Sum of the bounds, of the bytes alone where the device states no rate; with a sign where that leaves out more
    operations than are worth nothing."""
    found = spots(graph, phase.name, "bytes", device)
    unknown = [spot.item for spot in found if spot.seconds is None]
    seconds = sum(spot.seconds or spot.item.bytes / device.memory_bandwidth for spot in found)
    left_out = sum(item.flops for item in unknown) > _LEFT_OUT * sum(spot.item.flops for spot in found)
    return f"{'> ' if left_out else ''}{format_seconds(seconds)}"


def _kinds_table(graph: OpGraph) -> Group:
    """Each kind of layer: how many, which ran, and what one costs in each phase."""
    traced = phases(graph)
    table = narrow_table(["kind", "layers", "ran"], [f"{phase.name} FLOP" for phase in traced])
    costs = {phase.name: {cost.kind.kind if cost.kind else None: cost for cost in by_kind(graph, phase.name)}
             for phase in traced}
    for kind in graph.layer_kinds:
        ran = f"{len(kind.traced)}: {ranges(kind.traced)}" if kind.traced else "all" if graph.ran else "none"
        each = [flop(costs[phase.name][kind.kind].flops) for phase in traced]
        table.add_row(Text(f"{len(kind.layers)} x {kind.kind}"), ranges(kind.layers), ran, *each)
    proofs = dict.fromkeys(kind.proof for kind in graph.layer_kinds if kind.proof)
    told = f"layers that did not run make the same calls: {'; '.join(proofs)}" if proofs else ""
    return section("layer kinds, and what one layer of each costs", table, told)
