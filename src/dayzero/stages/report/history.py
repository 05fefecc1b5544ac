"""The runs of a gate as one HTML page: how near to its tolerance each check was, and what changed in between."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dayzero.schema.gate import GateResult

from .charts import PALETTE, Chart, as_json, plain
from .comparison import Sheet
from .html import page

SYMBOLS = {"pass": "circle", "fail": "x", "inconclusive": "diamond", "skipped": "circle-open"}
"""Mark of each outcome."""


def history_page(history: Sequence[GateResult]) -> str:
    """The page; the newest run is in its headline. There is at least one."""
    last = history[-1]
    lines = [f"baseline of {last.baseline}" if last.baseline else "there was no baseline",
             f"{len(history)} runs, the last one at {last.made}"]
    return page(
        "page.html.j2", ("charts.js",), title=f"gate of {last.release}", kicker=f"gate of {last.release}",
        headline={"pass": "Runs as it did", "fail": "Does not run as it did",
                  "inconclusive": "Cannot be told"}[last.outcome],
        tone={"pass": "good", "fail": "bad"}.get(last.outcome, ""), lines=lines,
        charts=[_timeline(history)], tables=_tables(history))


def _timeline(history: Sequence[GateResult]) -> Chart:
    figure = go.Figure()
    names = list(dict.fromkeys(check.name for result in history for check in result.checks))
    for index, name in enumerate(names):
        seen = [(result.made, check) for result in history for check in result.checks if check.name == name]
        figure.add_scatter(
            x=[made for made, _ in seen], y=[check.margin or None for _, check in seen], mode="lines+markers",
            name=plain(name), line={"color": PALETTE[index % len(PALETTE)], "width": 1.5},
            marker={"size": 8, "symbol": [SYMBOLS[check.outcome] for _, check in seen]},
            text=[plain(check.detail) for _, check in seen], hovertemplate="%{x}: %{y:.3g}<br>%{text}<extra></extra>")
    for result in history:
        if result.stored:
            figure.add_vline(x=result.made, line={"color": PALETTE[5], "dash": "dot", "width": 1})
    figure.add_hline(y=1, line={"color": PALETTE[4], "dash": "dash", "width": 1.5})
    figure.update_layout(yaxis={"type": "log", "title": "observed / tolerance", "tickformat": "~g"}, height=420,
                         xaxis={"title": "run"}, legend={"orientation": "h", "y": 1.15})
    return Chart("timeline", "Runs of the gate", f"Line chart: {len(names)} checks in {len(history)} runs.",
                 "Beyond 1 a check fails. Dotted: a new baseline was stored. Checks to the bit have no such number.",
                 as_json(figure), ("run", "check", "outcome", "observed / tolerance", "what was seen"),
                 tuple((result.made, check.name, check.outcome,
                        "" if check.margin is None else f"{check.margin:.3g}", check.detail)
                       for result in history for check in result.checks))


def _tables(history: Sequence[GateResult]) -> list[Sheet]:
    last = history[-1]
    checks = tuple((check.name, check.outcome, f"{check.seconds:.1f}", check.detail, check.where)
                   for check in last.checks)
    changed = tuple((f"{result.made}", each.what, each.name, each.before or "none", each.after or "none")
                    for result in reversed(history) for each in result.changed)
    sheets = [Sheet("The last run", ("check", "outcome", "seconds", "what was seen", "first wrong place"), checks),
              Sheet("What was not as at the baseline", ("run", "part", "name", "baseline", "run's"), changed)]
    return [sheet for sheet in sheets if sheet.rows]
