"""The trace for the page: operators as table rows, hot spots, one layer of each kind, and the tree of modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from dayzero.graphs import Branch, Spot, bound_seconds, by_kind, items, module_tree, phases, spots
from dayzero.schema import Device, OpGraph
from dayzero.units import format_bytes, format_count, format_flops, format_seconds

Level = Literal["operations", "grouped", "single"]
MOST_SINGLE = 6000
"""Rows of single calls that a page holds; of a larger graph they are in the trace's own file."""
_SPOTS = 8


class Row(NamedTuple):
    """Equal calls of one operator; with layers grouped, of the same module in all layers."""

    op: str
    """Operator."""
    kind: str
    """What an engineer calls it, or which variant it is."""
    module: str
    """Dotted path; `{L}` for the number of a grouped layer, `*` for other numbers."""
    calls: float
    """How often."""
    shapes: str
    """Shapes in and out, or axes."""
    dtype: str
    """dtype of the first tensor."""
    flops: float
    """Of all calls together."""
    bytes: float
    """Of all calls together, no fusion."""
    seconds: float | None
    """Roofline bound on one device of the target; None: the device states no rate."""
    phase: str
    """prefill or decode."""


class KindRow(NamedTuple):
    """One kind of layer."""

    name: str
    """Its name; `in no layer` for the rest."""
    layers: int
    """How many there are."""
    ran: str
    """Which of them ran: their number, or `all`."""
    proof: str
    """Why the others are known to make the same calls."""
    costs: tuple[tuple[str, str], ...]
    """(operations, bytes) of one layer, for each phase."""


def rows(graph: OpGraph, device: Device, level: Level) -> list[Row]:
    """The operator table: operations, or calls with equal layers together, or single calls."""
    if level == "single":
        return [Row(call.op, call.kind, call.module, call.count, call.shapes, call.dtype, call.flops, call.bytes,
                    bound_seconds(call.flops, call.bytes, call.dtype, device), call.phase) for call in graph.operators]
    found = [item for phase in phases(graph) for item in items(graph, phase.name, calls=level == "grouped")]
    return [Row(item.op, item.kind, item.module, item.count, item.detail, item.dtype, item.flops, item.bytes,
                bound_seconds(item.flops, item.bytes, item.dtype, device), item.phase) for item in found]


def levels(graph: OpGraph) -> tuple[Level, ...]:
    """Those that there is something to show for, the first at first."""
    if not graph.operators and graph.operations:
        return ("operations",)
    single: tuple[Level, ...] = ("single",) if len(graph.operators) <= MOST_SINGLE else ()
    return ("operations", "grouped", *single) if graph.operations else ("grouped", *single)


def hot_spots(graph: OpGraph, phase: str, device: Device, top: int = _SPOTS) -> tuple[Spot, ...]:
    """The rows of a phase with the longest bound."""
    return next((spots(graph, each.name, "time", device, top) for each in phases(graph) if each.name == phase), ())


def table_data(table: Iterable[Row]) -> list[list[Any]]:
    """Rows for the page: values in the order of `Row`, then the texts of flops, bytes and seconds."""
    return [[*row, format_flops(row.flops), format_bytes(round(row.bytes)),
             "" if row.seconds is None else format_seconds(row.seconds)] for row in table]


def kind_rows(graph: OpGraph) -> list[KindRow]:
    """One layer of each kind, and what is in no layer; empty without layer kinds."""
    costs = [by_kind(graph, phase.name) for phase in phases(graph)]
    found = []
    for each in zip(*costs, strict=True):
        kind = each[0].kind
        told = tuple((format_flops(cost.flops), format_bytes(round(cost.bytes))) for cost in each)
        ran = f"{len(kind.traced)}" if kind and kind.traced else "all"
        found.append(KindRow(kind.kind if kind else "in no layer", each[0].layers if kind else 0, ran if kind else "",
                             kind.proof if kind else "", told))
    return [row for row in found if row.layers or any(cost.rows for each in costs for cost in each if not cost.kind)]


def tree_data(graph: OpGraph) -> dict[str, Any] | None:
    """The tree of modules for the page: nodes are [name, class, number that are alike, [[value, text] of parameters and
    of each phase's operations and bytes], children]. None without modules below the model itself."""
    root = module_tree(graph)
    if root is None or not root.children:
        return None
    names = [phase.name for phase in phases(graph)]
    return {"columns": ["Parameters", *(f"{name}, {what}" for name in names for what in ("operations", "bytes"))],
            "root": _node(root)}


def _node(branch: Branch) -> list[Any]:
    span = branch.name if branch.name == branch.last else f"{branch.name} to {branch.last}"
    values: list[list[Any]] = [[branch.parameters, format_count(branch.parameters) if branch.parameters else ""]]
    for flops, size in branch.cost.values():
        values += [[flops, format_flops(flops) if flops else ""], [size, format_bytes(size) if size else ""]]
    kind = f"{branch.type} ({branch.note})" if branch.note else branch.type
    return [span, kind, branch.number, values, [_node(child) for child in branch.children]]
