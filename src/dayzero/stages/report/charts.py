"""The charts of the report. Each carries a caption with its source, a text for those who do not see it, and its numbers
as a table; colours of text and grid are set in the page, which knows whether it is light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import plotly.io

from dayzero.schema import Candidate, Plan, Verdict
from dayzero.units import format_bytes, format_seconds

from .headline import interval

PALETTE = ("#3b7dd8", "#e08a2c", "#2f9e77", "#b65fcf", "#d1495b", "#7b8794", "#c9a227", "#36a3b5", "#8c6d4f", "#5b5fc7")
_GIB = 2**30
_SHOWN = 8
_POSITIONS = ("top center", "bottom center", "middle right")


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


def memory_chart(plan: Plan) -> Chart | None:
    """Bytes on the fullest device by cause, for the first layouts."""
    shown = plan.candidates[:_SHOWN]
    if not shown:
        return None
    figure = _stacked({_label(candidate): candidate.bytes_per_device for candidate in shown}, 1 / _GIB, "GiB",
                      _main_causes(candidate.bytes_per_device for candidate in plan.candidates))
    limit = shown[0].usable_bytes
    _limit_line(figure, limit)
    return _bars("memory", "Memory on the fullest device", figure, shown, [c.bytes_per_device for c in shown],
                 lambda value: format_bytes(round(value)),
                 f"Planned bytes by cause; the dashed line is what one device may use ({format_bytes(limit)}).")


def stage_chart(plan: Plan) -> Chart | None:
    """Bytes of one device of each pipeline stage of the first layout; None when it has one stage."""
    candidate = plan.best or next(iter(plan.candidates), None)
    if candidate is None or len(candidate.stages) < 2:
        return None
    stages = {f"layers {start} to {end - 1}": needs
              for (start, end), needs in zip(candidate.stages, candidate.bytes_per_stage, strict=True)}
    figure = _stacked(stages, 1 / _GIB, "GiB", _main_causes(other.bytes_per_device for other in plan.candidates))
    _limit_line(figure, candidate.usable_bytes)
    return Chart("stages", f"Memory by pipeline stage, {candidate.layout.text}",
                 f"Stacked bars: memory of one device of each of {len(stages)} pipeline stages, by cause.",
                 "Planned bytes of one device of each stage; dashed: what it may use.", as_json(figure),
                 ("stage", *_causes(candidate.bytes_per_stage)),
                 _table(stages, candidate.bytes_per_stage, lambda value: format_bytes(round(value))))


def decode_chart(plan: Plan) -> Chart | None:
    """Time for one further token by cause."""
    return _time("decode", "Time for a token (decode)", plan, [c.decode_seconds for c in plan.candidates[:_SHOWN]],
                 plan.candidates[0].tpot_s.source if plan.candidates else "")


def prefill_chart(plan: Plan) -> Chart | None:
    """Time to the first token by cause."""
    return _time("prefill", "Time to the first token (prefill)", plan,
                 [c.prefill_seconds for c in plan.candidates[:_SHOWN]],
                 plan.candidates[0].ttft_s.source if plan.candidates else "")


def pareto_chart(plan: Plan) -> Chart | None:
    """Throughput against time per token, coloured by memory; the line joins those that no other beats in both."""
    if not plan.candidates:
        return None
    figure = go.Figure()
    fitting = [candidate for candidate in plan.candidates if candidate.fits]
    others = [candidate for candidate in plan.candidates if not candidate.fits]
    front = sorted(_front(fitting), key=lambda candidate: candidate.tpot_s.value)
    figure.add_scatter(x=[c.tpot_s.value * 1e3 for c in front], y=[c.tokens_per_s.value for c in front], mode="lines",
                       line={"color": PALETTE[5], "width": 1.5, "dash": "dot"}, name="best trade-offs",
                       hoverinfo="skip")
    if fitting:
        figure.add_trace(_points(fitting, front, "fits", {
            "size": 14, "color": [100 * c.need_bytes / c.usable_bytes for c in fitting], "colorscale": "Viridis",
            "cmin": 0, "cmax": 100, "colorbar": {"title": {"text": "memory<br>used, %"}, "thickness": 12},
            "line": {"width": 1, "color": PALETTE[5]}}))
    if others:
        figure.add_trace(_points(others, others[:1], "does not fit", {"size": 11, "symbol": "x-thin", "line": {
            "width": 2, "color": PALETTE[4]}, "color": PALETTE[4]}))
    figure.update_layout(xaxis_title="time per token, ms (left is better)", yaxis_title="tokens/s (up is better)",
                         legend={"orientation": "h", "y": 1.12}, height=420)
    figure.update_xaxes(range=_padded([c.tpot_s.value * 1e3 for c in plan.candidates]))
    figure.update_yaxes(range=_padded([c.tokens_per_s.value for c in plan.candidates]))
    return Chart(
        "pareto", "Candidate layouts", f"Scatter plot of {len(plan.candidates)} layouts: throughput against time per "
        "token, coloured by the share of memory that they use.",
        f"Predicted for the workload, at its concurrency. Source: {plan.candidates[0].tokens_per_s.source}.",
        as_json(figure), ("layout", "fits", "memory", "first token", "time per token", "throughput", "sequences"),
        tuple(_pareto_row(candidate) for candidate in plan.candidates))


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


def _time(id_: str, title: str, plan: Plan, parts: list[dict[str, float]], source: str) -> Chart | None:
    shown = plan.candidates[:_SHOWN]
    if not shown:
        return None
    main = _main_causes(part for candidate in plan.candidates
                        for part in (_shares(candidate.decode_seconds), _shares(candidate.prefill_seconds)))
    figure = _stacked({_label(candidate): part for candidate, part in zip(shown, parts, strict=True)}, 1e3, "ms", main)
    return _bars(id_, title, figure, shown, parts, format_seconds, f"Predicted time by cause. Source: {source}.")


def _bars(id_: str, title: str, figure: go.Figure, shown: Sequence[Candidate], parts: Sequence[dict[str, Any]],
          text: Any, caption: str) -> Chart:
    return Chart(id_, title, f"Stacked bars of the causes, for {len(shown)} layouts, the best first.", caption,
                 as_json(figure), ("layout", *_causes(parts)),
                 _table({_label(candidate): None for candidate in shown}, parts, text))


def _stacked(bars: dict[str, dict[str, Any]], scale: float, unit: str, main: list[str]) -> go.Figure:
    """Horizontal stacked bars, the first on top. A cause's colour follows from its place in `main`, the same for all
    charts of a kind; all other causes are one bar with the last colour."""
    figure = go.Figure()
    names, others = [plain(name) for name in bars], [cause for cause in _causes(bars.values()) if cause not in main]
    series = [([cause], cause.replace("_", " "), colour) for cause, colour in zip(main, PALETTE, strict=False)]
    for causes, name, colour in [*series, (others, "all others", PALETTE[-1])]:
        lengths = [sum(part.get(cause, 0) for cause in causes) * scale for part in bars.values()]
        if not any(lengths):
            continue
        figure.add_bar(y=names, x=lengths, orientation="h", name=plain(name), marker={"color": colour},
                       hovertemplate="%{y}<br>%{fullData.name}: %{x:.3g} " + unit + "<extra></extra>")
    figure.update_layout(barmode="stack", xaxis_title=unit, yaxis={"autorange": "reversed", "automargin": True},
                         height=160 + 34 * len(bars), bargap=0.35, legend={
                             "orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal", "maxheight": 1})
    return figure


def _limit_line(figure: go.Figure, usable_bytes: int) -> None:
    figure.add_vline(x=usable_bytes / _GIB, line={"color": PALETTE[4], "dash": "dash", "width": 1.5},
                     name=f"usable {format_bytes(usable_bytes)}", showlegend=True)


def _padded(values: Sequence[float]) -> list[float]:
    """Axis range with room around all values for markers and their labels, also when they are few or alike."""
    low, high = min(values), max(values)
    room = max(0.18 * (high - low), 0.06 * high)
    return [max(0.0, low - room), high + room]


def _points(candidates: list[Candidate], labelled: list[Candidate], name: str, marker: dict[str, Any]) -> go.Scatter:
    """One point for each layout; all are named if they are few, otherwise the labelled ones."""
    few = len(candidates) <= _SHOWN
    return go.Scatter(
        x=[c.tpot_s.value * 1e3 for c in candidates], y=[c.tokens_per_s.value for c in candidates], mode="markers+text",
        marker=marker, name=name, cliponaxis=False,
        text=[c.layout.text if few or c in labelled else "" for c in candidates],
        textposition=[_POSITIONS[index % len(_POSITIONS)] for index in range(len(candidates))],
        customdata=[[c.layout.text, _speed(c), interval(c.ttft_s), format_bytes(c.need_bytes)]
                    for c in candidates],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>first token %{customdata[2]}<br>"
                      "%{customdata[3]} on the fullest device<extra></extra>")


def _speed(candidate: Candidate) -> str:
    return f"{interval(candidate.tokens_per_s)}, {interval(candidate.tpot_s)} a token"


def _front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats in throughput and time per token at once."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.tpot_s.value, -c.tokens_per_s.value)):
        if not front or candidate.tokens_per_s.value > front[-1].tokens_per_s.value:
            front.append(candidate)
    return front


def _pareto_row(candidate: Candidate) -> tuple[str, ...]:
    return (candidate.layout.text, "yes" if candidate.fits else "no",
            f"{format_bytes(candidate.need_bytes)} of {format_bytes(candidate.usable_bytes)}",
            interval(candidate.ttft_s), interval(candidate.tpot_s), interval(candidate.tokens_per_s),
            str(candidate.max_sequences))


def _label(candidate: Candidate) -> str:
    return candidate.layout.text + ("" if candidate.fits else " (does not fit)")


def _causes(parts: Iterable[dict[str, Any]]) -> list[str]:
    """All causes that are not zero everywhere, the largest first."""
    totals: dict[str, float] = {}
    for part in parts:
        for cause, value in part.items():
            totals[cause] = totals.get(cause, 0) + value
    return sorted((cause for cause, total in totals.items() if total), key=lambda cause: -totals[cause])


def _main_causes(parts: Iterable[dict[str, Any]]) -> list[str]:
    """Causes of at least 1 % of the whole, as many as there are colours of their own, the largest first."""
    held = list(parts)
    total = sum(value for part in held for value in part.values())
    large = [cause for cause in _causes(held) if sum(part.get(cause, 0) for part in held) >= 0.01 * total]
    return large[:len(PALETTE) - 1]


def _shares(part: dict[str, float]) -> dict[str, float]:
    """Parts of 1, so that a short time and a long one count alike."""
    total = sum(part.values())
    return {cause: value / total for cause, value in part.items()} if total else {}


def _table(names: Iterable[str], parts: Sequence[dict[str, Any]], text: Any) -> tuple[tuple[str, ...], ...]:
    causes = _causes(parts)
    return tuple((name, *(text(part.get(cause, 0)) for cause in causes))
                 for name, part in zip(names, parts, strict=True))


def plain(text: str) -> str:
    """Chart texts are read as a small subset of HTML; a name is never markup."""
    return html.escape(text, quote=False)


def as_json(figure: go.Figure) -> str:
    """The figure for the page, with the same margins for all."""
    figure.update_layout(template=None, margin={"l": 10, "r": 16, "t": 10, "b": 44})
    return str(plotly.io.to_json(figure, validate=True))
