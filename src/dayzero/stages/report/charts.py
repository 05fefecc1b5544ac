"""The charts of the report. Each carries a caption with its source, a text for those who do not see it, and its numbers
as a table; colours of text and grid are set in the page, which knows whether it is light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import plotly.graph_objects as go
import plotly.io

from dayzero.schema import Verdict

PALETTE = ("#3b7dd8", "#e08a2c", "#2f9e77", "#b65fcf", "#d1495b", "#7b8794", "#c9a227", "#36a3b5", "#8c6d4f", "#5b5fc7")


class Chart(NamedTuple):
    """One figure for the page."""

    id: str
    """Its element."""
    title: str
    """Heading."""
    alt: str
    """What it shows, in a sentence."""
    caption: str
    """How to read it and where the figures are from."""
    figure: str
    """Plotly's JSON."""
    columns: tuple[str, ...]
    """Head of the table of its numbers."""
    rows: tuple[tuple[str, ...], ...]
    """The numbers as text."""


def layers_chart(verdict: Verdict) -> Chart | None:
    """Relative error of each layer's output against the reference, for each layout that ran."""
    if not verdict.layers:
        return None
    figure = go.Figure()
    layouts = list(dict.fromkeys(error.layout for error in verdict.layers))
    for index, layout in enumerate(layouts):
        errors = [error for error in verdict.layers if error.layout == layout]
        width = 2 + 2 * min(2, len(layouts) - 1 - index)  # equal lines stay visible below each other
        figure.add_scatter(x=[plain(e.place) for e in errors], y=[e.relative_l2 or None for e in errors],
                           mode="lines+markers", name=plain(layout), marker={"size": 5},
                           line={"color": PALETTE[index % len(PALETTE)], "width": width})
    places = list(dict.fromkeys(error.place for error in verdict.layers))
    limits = {tuple(error.tolerance for error in verdict.layers if error.layout == layout) for layout in layouts}
    for limit in sorted(limits, reverse=True):
        figure.add_scatter(x=[plain(place) for place in places], y=limit, mode="lines", name="tolerance",
                           showlegend=limit == max(limits), line={"color": PALETTE[4], "dash": "dash", "width": 1.5})
    figure.update_layout(yaxis={"type": "log", "title": "relative L2 error", "dtick": "D2", "tickformat": "~g"},
                         xaxis={"title": "place in the model", "nticks": 12}, legend={"orientation": "h", "y": 1.12},
                         height=380)
    equal = sum(error.relative_l2 == 0 for error in verdict.layers)
    note = f" {equal} places are exactly equal and not drawn." if equal else ""
    return Chart("layers", "Error of each layer", f"Line chart: relative error at {len(places)} places of the model "
                 f"for {', '.join(layouts)}, with the tolerance as a dashed line.",
                 f"Measured against {verdict.reference}; ||x - r|| / ||r|| over all values.{note}", as_json(figure),
                 ("layout", "place", "relative L2", "largest difference", "cosine", "tolerance"),
                 tuple((e.layout, e.place, f"{e.relative_l2:.3g}", f"{e.max_abs:.3g}", f"{e.cosine:.7f}",
                        f"{e.tolerance:.3g}") for e in verdict.layers))


def bars(id_: str, title: str, figure: go.Figure, parts: Mapping[str, Mapping[str, Any]], text: Any, caption: str
         ) -> Chart:
    """Stacked bars of causes, one for each layout, as `stacked` draws them; `text` writes a number."""
    return Chart(id_, title, f"Stacked bars of the causes, for {len(parts)} layouts, the best first.", caption,
                 as_json(figure), ("layout", *causes_of(parts.values())), table_of(parts, text))


def stacked(bars: Mapping[str, Mapping[str, Any]], scale: float, unit: str, main: list[str]) -> go.Figure:
    """Horizontal stacked bars, the first on top. A cause's colour follows from its place in `main`, the same for all
    charts of a kind; all other causes are one bar with the last colour."""
    figure = go.Figure()
    names, others = [plain(name) for name in bars], [cause for cause in causes_of(bars.values()) if cause not in main]
    series = [([cause], cause.replace("_", " "), colour) for cause, colour in zip(main, PALETTE, strict=False)]
    for causes, name, colour in [*series, (others, "all others", PALETTE[-1])]:
        lengths = [sum(part.get(cause, 0) for cause in causes) * scale for part in bars.values()]
        if not any(lengths):
            continue
        figure.add_bar(y=names, x=lengths, orientation="h", name=plain(name), marker={"color": colour},
                       hovertemplate="%{y}<br>%{fullData.name}: %{x:.3g} " + unit + "<extra></extra>")
    figure.update_layout(barmode="stack", xaxis_title=unit, yaxis={"autorange": "reversed", "automargin": True},
                         height=110 + 34 * len(bars) + 12 * len(figure.data), bargap=0.35, legend={
                             "orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal", "maxheight": 1})
    return figure


def causes_of(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """All causes that are not zero everywhere, the largest first."""
    totals: dict[str, float] = {}
    for part in parts:
        for cause, value in part.items():
            totals[cause] = totals.get(cause, 0) + value
    return sorted((cause for cause, total in totals.items() if total), key=lambda cause: -totals[cause])


def main_causes(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Causes of at least 1 % of the whole, as many as there are colours of their own, the largest first."""
    held = list(parts)
    total = sum(value for part in held for value in part.values())
    large = [cause for cause in causes_of(held) if sum(part.get(cause, 0) for part in held) >= 0.01 * total]
    return large[:len(PALETTE) - 1]


def shares(part: Mapping[str, float]) -> dict[str, float]:
    """Parts of 1, so that a short time and a long one count alike."""
    total = sum(part.values())
    return {cause: value / total for cause, value in part.items()} if total else {}


def table_of(parts: Mapping[str, Mapping[str, Any]], text: Any) -> tuple[tuple[str, ...], ...]:
    """One row for each name, one column for each cause."""
    causes = causes_of(parts.values())
    return tuple((name, *(text(part.get(cause, 0)) for cause in causes)) for name, part in parts.items())


def plain(text: str) -> str:
    """Chart texts are read as a small subset of HTML; a name is never markup."""
    return html.escape(text, quote=False)


def as_json(figure: go.Figure) -> str:
    """The figure for the page, with the same margins for all."""
    figure.update_layout(template=None, margin={"l": 10, "r": 16, "t": 10, "b": 44})
    return str(plotly.io.to_json(figure, validate=True))
