"""The charts of the report. Each carries a caption with its source, a text for those who do not see it, and its numbers
as a table; colours of text and grid are set in the page, which knows whether it is light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import plotly.io

from dayzero.schema import Candidate, Plan, Verdict
from dayzero.units import format_bytes, format_rate, format_seconds

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
                      _causes(candidate.bytes_per_device for candidate in plan.candidates))
    limit = shown[0].usable_bytes
    _limit_line(figure, limit / _GIB, f"usable {format_bytes(limit)}")
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
    figure = _stacked(stages, 1 / _GIB, "GiB", _causes(other.bytes_per_device for other in plan.candidates))
    _limit_line(figure, candidate.usable_bytes / _GIB, f"usable {format_bytes(candidate.usable_bytes)}")
    return Chart("stages", f"Memory by pipeline stage, {candidate.layout.text}",
                 f"Stacked bars: memory of one device of each of {len(stages)} pipeline stages, by cause.",
                 "Planned bytes of one device of each stage.", _json(figure),
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
        figure.add_trace(_points(fitting, "fits", {
            "size": 14, "color": [100 * c.need_bytes / c.usable_bytes for c in fitting], "colorscale": "Viridis",
            "cmin": 0, "cmax": 100, "colorbar": {"title": {"text": "memory<br>used, %"}, "thickness": 12},
            "line": {"width": 1, "color": PALETTE[5]}}))
    if others:
        figure.add_trace(_points(others, "does not fit", {"size": 11, "symbol": "x-thin", "line": {
            "width": 2, "color": PALETTE[4]}, "color": PALETTE[4]}))
    figure.update_layout(xaxis_title="time per token, ms (left is better)", yaxis_title="tokens/s (up is better)",
                         legend={"orientation": "h", "y": 1.12}, height=420)
    return Chart(
        "pareto", "Candidate layouts", f"Scatter plot of {len(plan.candidates)} layouts: throughput against time per "
        "token, coloured by the share of memory that they use.",
        f"Predicted for the workload, at its concurrency. Source: {plan.candidates[0].tokens_per_s.source}.",
        _json(figure), ("layout", "fits", "memory", "first token", "time per token", "throughput", "sequences"),
        tuple(_pareto_row(candidate) for candidate in plan.candidates))


def layers_chart(verdict: Verdict) -> Chart | None:
    """Relative error of each layer's output against the reference, for each layout that ran."""
    if not verdict.layers:
        return None
    figure = go.Figure()
    layouts = list(dict.fromkeys(error.layout for error in verdict.layers))
    for index, layout in enumerate(layouts):
        errors = [error for error in verdict.layers if error.layout == layout]
        figure.add_scatter(x=[_plain(e.place) for e in errors], y=[e.relative_l2 or None for e in errors],
                           mode="lines+markers", name=_plain(layout), marker={"size": 5},
                           line={"color": PALETTE[index % len(PALETTE)], "width": 2})
    places = list(dict.fromkeys(error.place for error in verdict.layers))
    tolerance = {error.place: error.tolerance for error in verdict.layers}
    figure.add_scatter(x=[_plain(place) for place in places], y=[tolerance[place] for place in places], mode="lines",
                       name="tolerance", line={"color": PALETTE[4], "dash": "dash", "width": 1.5})
    figure.update_layout(yaxis={"type": "log", "title": "relative L2 error", "dtick": "D2", "tickformat": "~g"},
                         xaxis={"title": "place in the model", "nticks": 12}, legend={"orientation": "h", "y": 1.12},
                         height=380)
    equal = sum(error.relative_l2 == 0 for error in verdict.layers)
    note = f" {equal} places are exactly equal and not drawn." if equal else ""
    return Chart("layers", "Error of each layer", f"Line chart: relative error at {len(places)} places of the model "
                 f"for {', '.join(layouts)}, with the tolerance as a dashed line.",
                 f"Measured against {verdict.reference}; ||x - r|| / ||r|| over all values.{note}", _json(figure),
                 ("layout", "place", "relative L2", "largest difference", "cosine", "tolerance"),
                 tuple((e.layout, e.place, f"{e.relative_l2:.3g}", f"{e.max_abs:.3g}", f"{e.cosine:.7f}",
                        f"{e.tolerance:.3g}") for e in verdict.layers))


def _time(id_: str, title: str, plan: Plan, parts: list[dict[str, float]], source: str) -> Chart | None:
    shown = plan.candidates[:_SHOWN]
    if not shown:
        return None
    order = _causes([part for candidate in plan.candidates
                     for part in (candidate.decode_seconds, candidate.prefill_seconds)])
    figure = _stacked({_label(candidate): part for candidate, part in zip(shown, parts, strict=True)}, 1e3, "ms", order)
    return _bars(id_, title, figure, shown, parts, format_seconds, f"Predicted time by cause. Source: {source}.")


def _bars(id_: str, title: str, figure: go.Figure, shown: Sequence[Candidate], parts: Sequence[dict[str, Any]],
          text: Any, caption: str) -> Chart:
    return Chart(id_, title, f"Stacked bars of the causes, for {len(shown)} layouts, the best first.", caption,
                 _json(figure), ("layout", *_causes(parts)),
                 _table({_label(candidate): None for candidate in shown}, parts, text))


def _stacked(bars: dict[str, dict[str, Any]], scale: float, unit: str, order: list[str]) -> go.Figure:
    """Horizontal stacked bars, the first on top. A cause's colour follows from its place in `order`, the same for all
    charts of a kind."""
    figure = go.Figure()
    names, present = [_plain(name) for name in bars], _causes(bars.values())
    for index, cause in enumerate(order):
        if cause not in present:
            continue
        figure.add_bar(y=names, x=[part.get(cause, 0) * scale for part in bars.values()], orientation="h",
                       name=_plain(cause.replace("_", " ")), marker={"color": PALETTE[index % len(PALETTE)]},
                       hovertemplate="%{y}<br>%{fullData.name}: %{x:.3g} " + unit + "<extra></extra>")
    figure.update_layout(barmode="stack", xaxis_title=unit, yaxis={"autorange": "reversed", "automargin": True},
                         height=130 + 34 * len(bars), legend={"orientation": "h", "y": 1.0, "yanchor": "bottom",
                                                              "traceorder": "normal"}, bargap=0.35)
    return figure


def _limit_line(figure: go.Figure, x: float, text: str) -> None:
    figure.add_vline(x=x, line={"color": PALETTE[4], "dash": "dash", "width": 1.5})
    figure.add_annotation(x=x, y=0, yref="paper", yanchor="bottom", text=text, showarrow=False, xanchor="right",
                          xshift=-4, font={"color": PALETTE[4], "size": 11})


def _points(candidates: list[Candidate], name: str, marker: dict[str, Any]) -> go.Scatter:
    return go.Scatter(
        x=[c.tpot_s.value * 1e3 for c in candidates], y=[c.tokens_per_s.value for c in candidates],
        mode="markers+text" if len(candidates) <= _SHOWN else "markers", marker=marker, name=name,
        text=[c.layout.text for c in candidates], cliponaxis=False,
        textposition=[_POSITIONS[index % len(_POSITIONS)] for index in range(len(candidates))],
        customdata=[[format_bytes(c.need_bytes), _interval(c), format_seconds(c.ttft_s.value)] for c in candidates],
        hovertemplate="<b>%{text}</b><br>%{customdata[1]}<br>first token %{customdata[2]}<br>"
                      "%{customdata[0]} on the fullest device<extra></extra>")


def _interval(candidate: Candidate) -> str:
    tpot, rate = candidate.tpot_s, candidate.tokens_per_s
    return (f"{format_seconds(tpot.value)} a token ({format_seconds(tpot.low)} to {format_seconds(tpot.high)}), "
            f"{format_rate(rate.value, 'tokens/s')}")


def _front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats in throughput and time per token at once."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.tpot_s.value, -c.tokens_per_s.value)):
        if not front or candidate.tokens_per_s.value > front[-1].tokens_per_s.value:
            front.append(candidate)
    return front


def _pareto_row(candidate: Candidate) -> tuple[str, ...]:
    tpot = candidate.tpot_s
    return (candidate.layout.text, "yes" if candidate.fits else "no",
            f"{format_bytes(candidate.need_bytes)} of {format_bytes(candidate.usable_bytes)}",
            format_seconds(candidate.ttft_s.value),
            f"{format_seconds(tpot.value)} ({format_seconds(tpot.low)} to {format_seconds(tpot.high)})",
            format_rate(candidate.tokens_per_s.value, "tokens/s"), str(candidate.max_sequences))


def _label(candidate: Candidate) -> str:
    return candidate.layout.text + ("" if candidate.fits else " (does not fit)")


def _causes(parts: Iterable[dict[str, Any]]) -> list[str]:
    """All causes that are not zero everywhere, in the order in which they first appear."""
    return list(dict.fromkeys(cause for part in parts for cause, value in part.items() if value))


def _table(names: Iterable[str], parts: Sequence[dict[str, Any]], text: Any) -> tuple[tuple[str, ...], ...]:
    causes = _causes(parts)
    return tuple((name, *(text(part.get(cause, 0)) for cause in causes))
                 for name, part in zip(names, parts, strict=True))


def _plain(text: str) -> str:
    """Chart texts are read as a small subset of HTML; a name is never markup."""
    return html.escape(text, quote=False)


def _json(figure: go.Figure) -> str:
    figure.update_layout(template=None, margin={"l": 10, "r": 16, "t": 10, "b": 44})
    return str(plotly.io.to_json(figure, validate=True))
