"""Where a phase spends its work, as areas: the tree of modules as a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import plotly.graph_objects as go

from dayzero.graphs import Branch, module_tree, phases
from dayzero.schema import OpGraph
from dayzero.units import format_bytes, format_flops

from .charts import PALETTE, Chart, as_json, plain

_LEAST = 0.002
"""Share of the whole below which a module is not drawn by itself."""
_ROWS = 60
_ROOT = "(model)"
"""Id of the model itself, which no path is."""


class Area(NamedTuple):
    """One rectangle."""

    id: str
    """Path of the module, with that of the first where several are alike."""
    parent: str
    """Id of what it lies in; empty: the whole."""
    label: str
    """Name, and how many are alike."""
    value: float
    """Cost of all of them."""


def cost_charts(graph: OpGraph) -> list[Chart]:
    """Operations of prefill and bytes of decode, which are what bounds them: one chart for each that was traced."""
    root, found = module_tree(graph), []
    for phase in phases(graph) if root else ():
        at, what, text = (0, "operations", format_flops) if phase.name == "prefill" else (1, "bytes", _bytes)
        areas = list(_areas(root, phase.name, at)) if root else []
        if len(areas) > 1:
            found.append(_chart(areas, phase.name, what, text))
    return found


def _bytes(value: float) -> str:
    return format_bytes(round(value))


def _areas(root: Branch, phase: str, at: int) -> Iterator[Area]:
    least = _LEAST * root.cost[phase][at]

    def below(branch: Branch, parent: str, times: int) -> Iterator[Area]:
        times *= branch.number
        value = branch.cost[phase][at] * times
        if not value or value < least:
            return
        span = branch.name if branch.name == branch.last else f"{branch.name} to {branch.last}"
        yield Area(branch.path or _ROOT, parent, f"{branch.number} × {span}" if branch.number > 1 else span, value)
        for child in branch.children:
            yield from below(child, branch.path or _ROOT, times)

    yield from below(root, "", 1)


def _chart(areas: list[Area], phase: str, what: str, text: Callable[[float], str]) -> Chart:
    whole = areas[0].value
    shares = [f"{text(area.value)}, {100 * area.value / whole:.1f} %" for area in areas]
    figure = go.Figure(go.Treemap(
        ids=[plain(area.id) for area in areas], parents=[plain(area.parent) for area in areas],
        labels=[plain(area.label) for area in areas], values=[area.value for area in areas], text=shares,
        branchvalues="total", sort=True, maxdepth=5, tiling={"pad": 2}, textinfo="label+text",
        hovertemplate="<b>%{id}</b><br>%{text}<extra></extra>", marker={"cornerradius": 3},
        root={"color": "rgba(127,127,127,0.12)"}))
    figure.update_layout(height=400, treemapcolorway=list(PALETTE))
    largest = sorted(areas[1:], key=lambda area: -area.value)[:_ROWS]
    return Chart(f"modules-{phase}", f"Where {phase} goes",
                 f"Treemap: {what} of {phase} by module; the largest is {largest[0].label}.",
                 f"Area: {what} of {phase}, traced, unfused. Click on a module to look inside.", as_json(figure),
                 ("module", what, "share"),
                 tuple((area.id, text(area.value), f"{100 * area.value / whole:.1f} %") for area in largest))
