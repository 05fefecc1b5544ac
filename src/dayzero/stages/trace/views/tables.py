"""Tables of a graph: operators by cost, one layer of each kind, places that ask for values, and what to know."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.text import Text

from dayzero.graphs import Item, KindCost, Spot, balance, by_kind, layer_list, spots
from dayzero.graphs.roofline import By
from dayzero.schema import Device, OpGraph
from dayzero.schema.graph import OWN, PhaseName
from dayzero.units import format_bytes, format_flops, format_seconds

from .columns import flop, narrow_table, number, ranges, ratio, section, size

_WORTH = 0.01
"""Share of a phase from which an operator's dtype is worth telling."""
_BOUNDS = {"memory": "mem", "compute": "flop", "": ""}


def hot_spots(graph: OpGraph, phase: PhaseName, top: int = 10, by: By = "flops", device: Device | None = None
              ) -> tuple[Spot, ...]:
    """The operators of a phase that cost most, dearest first; equal ones of all layers together."""
    return spots(graph, phase, by, device, top)


def operators_table(graph: OpGraph, phase: PhaseName, top: int = 10, by: By = "flops", device: Device | None = None,
                    detail: bool = True) -> Group:
    """The hot spots of a phase: cost, operations for each byte and, with a device, the least time and what bounds it;
    with `detail` their axes or shapes."""
    layers = layer_list(graph)
    right = ["runs", "FLOP", "bytes", "flop/B", *(["at least", "bound"] if device else []), f"% {by}"]
    table = narrow_table(["operator and module"], right)
    for spot in hot_spots(graph, phase, top, by, device):
        item = spot.item
        seconds = "no rate" if spot.seconds is None else format_seconds(spot.seconds)
        cells = [number(item.count), flop(item.flops), size(item.bytes), ratio(item.intensity),
                 *([seconds, _BOUNDS[spot.bound]] if device else []), f"{100 * spot.share:.1f}"]
        table.add_row(_what(item, layers, detail), *cells)
    return section(f"{phase}: operators by {by}", table, _caption(graph, phase, device))


def _what(item: Item, layers: str | None, detail: bool = False) -> Text:
    """Operator, and module without the path of the list of layers."""
    module = item.module.removeprefix(f"{layers}.") if layers and "{L}" in item.module else item.module
    parts: list[str | tuple[str, str]] = [(item.name, "bold"), "\n", module or "(model)"]
    if detail and item.detail:
        parts += ["\n", (f"{item.detail} {item.dtype}".rstrip(), "dim")]
    return Text.assemble(*parts)


def _caption(graph: OpGraph, phase: PhaseName, device: Device | None) -> str:
    if device is None:
        return ""
    dtypes = dict.fromkeys(spot.item.dtype for spot in spots(graph, phase) if spot.share >= _WORTH)
    known = {dtype: balance(device, dtype) for dtype in dtypes}
    told = ", ".join(f"{value:,.0f} flop/B in {dtype}" if value else f"no rate for {dtype}"
                     for dtype, value in known.items())
    how = "; weights as they are stored" if any(each.phase == phase for each in graph.operations) else (
        ", unfused, in the traced dtypes")
    return (f"on one {device.name}, whose balance is {told}: memory bounds an operator below it (mem), the matrix "
            f"units above (flop); at the stated rates{how}")


def kind_tables(graph: OpGraph, phase: PhaseName, top: int = 10, by: By = "flops") -> Group:
    """For each layer kind what one layer runs, and how many there are; last what is in no layer."""
    costs = by_kind(graph, phase)
    total = sum(cost.layers * cost.flops for cost in costs)
    layers = layer_list(graph)
    return Group(*(_kind_table(cost, phase, total, layers, top, by) for cost in costs if cost.rows))


def _kind_table(cost: KindCost, phase: str, total: float, layers: str | None, top: int, by: By) -> Group:
    share = f", {100 * cost.layers * cost.flops / total:.1f} % of {phase}" if total else ""
    one = f"{format_flops(cost.flops)}, {format_bytes(round(cost.bytes))}"
    title = (f"{phase}: one layer of {cost.layers} x {cost.kind.kind} ({ranges(cost.kind.layers)}): {one}{share}"
             if cost.kind else f"{phase}: in no layer: {one}{share}")
    table = narrow_table(["operator and module"], ["runs", "FLOP", "bytes", "flop/B", "%"])
    key = "bytes" if by == "bytes" else "flops"
    whole = getattr(cost, key)
    rows = sorted(cost.rows, key=lambda row: (-getattr(row, key), -row.bytes))
    for row in rows[:top]:
        part = f"{100 * getattr(row, key) / whole:.1f}" if whole else ""
        table.add_row(_what(row, layers), number(row.count), flop(row.flops), size(row.bytes), ratio(row.intensity),
                      part)
    if len(rows) > top:
        table.add_row(Text(f"and {len(rows) - top} more", "dim"), "", "", "", "", "")
    return section(title, table)


def control_flow_table(graph: OpGraph, top: int | None = None) -> Group:
    """Places where the code asks for the value of a tensor: those that ran, then those only seen in the source."""
    sites = sorted(graph.control_flow, key=lambda site: not site.executed)
    if not sites:
        return Group(Text("\ncontrol flow: nothing asks for the value of a tensor"))
    ran = sum(site.executed for site in sites)
    title = f"control flow that depends on values: {ran} places ran, {len(sites) - ran} only in the source"
    table = narrow_table(["place", "kind", "assumed"], ["times", "seen"])
    for site in sites[:top]:
        table.add_row(*map(Text, (f"{site.file}:{site.line}", site.kind, site.assumed if site.executed else "",
                                  f"{site.times:,}" if site.executed else "", "ran" if site.executed else "source")))
    if top is not None and len(sites) > top:
        table.add_row(Text(f"and {len(sites) - top} more: --view control-flow", "dim"))
    return section(title, table)


def notes(graph: OpGraph) -> list[Text]:
    """What is missing, what took the place of something else, and the limits under which the code ran."""
    lines = [Text(f"missing: {entry}", "bold red") for entry in graph.missing]
    lines += [Text(f"stand-in: {each.op} for {each.call} ({each.times:,} times)") for each in graph.stand_ins]
    lines += [Text(f"supplied: {name}") for name in graph.supplied]
    if graph.isolation:
        whose = OWN if graph.own else "the library's"
        lines.append(Text(f"{whose} code ran with: {', '.join(graph.isolation)}"))
    inexact = _names(operation.module for operation in graph.operations if not operation.exact)
    if inexact:
        lines.append(Text(f"axes hold at the traced sizes only: {inexact}"))
    return lines


def _names(names: Iterable[str], most: int = 6) -> str:
    each = list(dict.fromkeys(names))
    return ", ".join(each[:most]) + (f" and {len(each) - most} more" if len(each) > most else "")
