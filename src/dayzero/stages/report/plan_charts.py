"""The charts of the plan: trade-offs, memory and time by cause, what other rates would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import plotly.graph_objects as go

from dayzero.schema import Candidate, Change, Limits, Plan, Point, Results, Trained
from dayzero.units import format_bytes, format_interval, format_seconds

from .charts import PALETTE, Chart, as_json, bars, causes_of, main_causes, shares, stacked, table_of
from .headline import interval

_GIB = 2**30
_SHOWN = 8
_LATENCIES = {"tpot": ("time per token", "tpot_s"), "ttft": ("time to the first token", "ttft_s")}
_FIGURES = {"tokens_per_s": "throughput", "tpot_s": "time per token", "ttft_s": "time to the first token",
            "step_s": "time of a step"}


def plan_charts(results: Results) -> list[Chart]:
    """All charts that there is something to draw for, in the order of the page."""
    plan = results.plan
    if plan is None:
        return []
    found = [trade_off_chart(plan, results.target.limits, name) for name in _LATENCIES]
    found += [memory_chart(plan), stage_chart(plan), decode_chart(plan), prefill_chart(plan), step_chart(plan),
              sensitivity_chart(plan.sensitivity)]
    return [chart for chart in found if chart is not None]


def memory_chart(plan: Plan) -> Chart | None:
    """Bytes on the fullest device by cause, for the first layouts."""
    every: Sequence[Candidate | Trained] = plan.candidates or plan.training
    if not every:
        return None
    needs = [(_label(one), one.bytes_by_part if isinstance(one, Candidate) else one.bytes_per_device) for one in every]
    parts = dict(needs[:_SHOWN])
    figure = stacked(parts, 1 / _GIB, "GiB", main_causes(each for _, each in needs))
    limit = every[0].usable_bytes
    _limit_line(figure, limit)
    return bars("memory", "Memory on the fullest device", figure, parts, _bytes,
                f"Planned bytes by cause; the dashed line is what one device may use ({format_bytes(limit)}).")


def stage_chart(plan: Plan) -> Chart | None:
    """Bytes of one device of each pipeline stage of the first layout; None when it has one stage."""
    every: Sequence[Candidate | Trained] = plan.candidates or plan.training
    first = next((one for one in every if one.fits), next(iter(every), None))
    if first is None or len(first.stages) < 2:
        return None
    stages = {f"layers {start} to {end - 1}": needs
              for (start, end), needs in zip(first.stages, first.bytes_per_stage, strict=True)}
    figure = stacked(stages, 1 / _GIB, "GiB", main_causes(one.bytes_per_device for one in every))
    _limit_line(figure, first.usable_bytes)
    return Chart("stages", f"Memory by pipeline stage, {first.layout.text}",
                 f"Stacked bars: memory of one device of each of {len(stages)} pipeline stages, by cause.",
                 "Planned bytes of one device of each stage; dashed: what it may use.", as_json(figure),
                 ("stage", *causes_of(first.bytes_per_stage)), table_of(stages, _bytes))


def decode_chart(plan: Plan) -> Chart | None:
    """Time for one further token by cause."""
    return _time("decode", "Time for a token (decode)", plan,
                 {_label(one): one.decode_seconds for one in plan.candidates[:_SHOWN]}, "tpot_s")


def prefill_chart(plan: Plan) -> Chart | None:
    """Time to the first token by cause."""
    return _time("prefill", "Time to the first token (prefill)", plan,
                 {_label(one): one.prefill_seconds for one in plan.candidates[:_SHOWN]}, "ttft_s")


def step_chart(plan: Plan) -> Chart | None:
    """Time of a training step by cause."""
    if not plan.training:
        return None
    parts = {_label(one): one.step_seconds for one in plan.training[:_SHOWN]}
    figure = stacked(parts, 1.0, "s", main_causes(one.step_seconds for one in plan.training))
    return bars("step", "Time of a training step", figure, parts, format_seconds,
                f"Predicted time by cause. Source: {plan.training[0].step_s.source}.")


def _time(id_: str, title: str, plan: Plan, parts: Mapping[str, Mapping[str, float]], figure_of: str) -> Chart | None:
    if not parts:
        return None
    main = main_causes(part for one in plan.candidates
                       for part in (shares(one.decode_seconds), shares(one.prefill_seconds)))
    source = getattr(plan.candidates[0], figure_of).source
    return bars(id_, title, stacked(parts, 1e3, "ms", main), parts, format_seconds,
                f"Predicted time by cause. Source: {source}.")


def trade_off_chart(plan: Plan, limits: Limits, against: str) -> Chart | None:
    """Throughput of a device against a latency: the layouts and loads that no other beats, and the layouts at the load
    that was asked for."""
    named, figure_of = _LATENCIES[against]
    front = sorted((point for point in plan.front if against in point.best_for), key=attrgetter(figure_of))
    fitting = [one for one in plan.candidates if one.fits]
    if not front and not fitting:
        return None
    figure = go.Figure()
    if front:
        figure.add_trace(_line(front, figure_of))
    if fitting:
        figure.add_trace(_candidates(fitting, figure_of))
    _limit(figure, getattr(limits, figure_of))
    figure.update_layout(
        xaxis={"title": f"{named}, ms (left is better)", "type": "log", "dtick": "D2", "tickformat": "~g"},
        yaxis={"title": "tokens/s of a device (up is better)", "rangemode": "tozero"}, height=420,
        legend={"orientation": "h", "y": 1.12})
    asked = plan.workload.get("concurrency")
    return Chart(
        "pareto" if against == "tpot" else "pareto-ttft", f"Throughput against {named}",
        f"Scatter plot: output tokens a second of a device against {named}; a line joins {len(front)} layouts and "
        "loads that no other beats.",
        "Line: each layout at each load from one sequence up to what fits; points: the listed layouts at the "
        f"workload's load ({asked} sequences). Predicted"
        + (f". Source: {fitting[0].tokens_per_s.source}." if fitting else "."),
        as_json(figure), ("layout", "sequences", "first token", "time per token", "tokens/s a device"),
        (*(_front_row(point) for point in front), *(_candidate_row(one, asked) for one in fitting)))


def _line(front: Sequence[Point], figure_of: str) -> go.Scatter:
    return go.Scatter(
        x=[getattr(point, figure_of) * 1e3 for point in front], y=[point.tokens_per_s_per_device for point in front],
        mode="lines+markers", name="best trade-offs", line={"color": PALETTE[0], "width": 1.5, "shape": "hv"},
        marker={"size": 7, "color": [PALETTE[0] if point.within else PALETTE[5] for point in front]},
        customdata=[_front_row(point) for point in front], hovertemplate=(
            "<b>%{customdata[0]}</b>, %{customdata[1]} sequences<br>%{customdata[4]}<br>first token %{customdata[2]}"
            "<br>%{customdata[3]} a token<extra></extra>"))


def _candidates(fitting: Sequence[Candidate], figure_of: str) -> go.Scatter:
    """The listed layouts at the workload's load, coloured by memory; the first is named."""
    return go.Scatter(
        x=[getattr(one, figure_of).value * 1e3 for one in fitting],
        y=[one.tokens_per_s.value / one.layout.world_size for one in fitting], mode="markers+text",
        name="layouts at the workload's load", cliponaxis=False, textposition="top center",
        text=[fitting[0].layout.text, *[""] * (len(fitting) - 1)],
        marker={"size": 12, "color": [100 * one.need_bytes / one.usable_bytes for one in fitting],
                "colorscale": "Viridis", "cmin": 0, "cmax": 100, "line": {"width": 1, "color": PALETTE[5]},
                "colorbar": {"title": {"text": "memory used, %", "side": "right"}, "thickness": 12}},
        customdata=[[one.layout.text, interval(one.tokens_per_s), interval(one.tpot_s), interval(one.ttft_s),
                     format_bytes(one.need_bytes)] for one in fitting],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}, %{customdata[2]} a token<br>first token "
                      "%{customdata[3]}<br>%{customdata[4]} on the fullest device<extra></extra>")


def _limit(figure: go.Figure, most: float | None) -> None:
    if most is not None:
        figure.add_vline(x=most * 1e3, line={"color": PALETTE[4], "dash": "dash", "width": 1.5},
                         name=f"limit {format_seconds(most)}", showlegend=True)


def _front_row(point: Point) -> tuple[str, ...]:
    return (point.layout.text, f"{point.concurrency:,}", format_seconds(point.ttft_s), format_seconds(point.tpot_s),
            f"{point.tokens_per_s_per_device:,.3g} tokens/s")


def _candidate_row(one: Candidate, asked: object) -> tuple[str, ...]:
    world, rate = one.layout.world_size, one.tokens_per_s
    return (one.layout.text, str(asked), interval(one.ttft_s), interval(one.tpot_s),
            format_interval(rate.value / world, rate.low / world, rate.high / world, rate.unit))


def sensitivity_chart(changes: Sequence[Change]) -> Chart | None:
    """By how much the first layout's throughput changes with each rate."""
    if not changes:
        return None
    figure = go.Figure()
    for index, factor in enumerate(sorted({change.factor for change in changes})):
        those = [change for change in changes if change.factor == factor and change.after]
        figure.add_bar(y=[change.resource for change in those], orientation="h", name=f"{factor - 1:+.0%}",
                       x=[100 * _share(change, "tokens_per_s") for change in those],
                       marker={"color": PALETTE[1 - index % 2]}, hovertemplate="%{y}: %{x:+.1f} %<extra></extra>")
    figure.update_layout(barmode="overlay", xaxis_title="change of throughput, %", height=250, bargap=0.4,
                         yaxis={"autorange": "reversed", "automargin": True}, legend={"orientation": "h", "y": 1.16})
    shown = [name for name in _FIGURES if name in changes[0].before]
    return Chart(
        "sensitivity", "If rates were others", "Bars: change of the first layout's throughput when a rate is a fifth "
        "lower or higher.", "What the same prediction says of the first layout when one rate is changed; the table "
        "says too whether another layout is first then.", as_json(figure),
        ("rate", *(_FIGURES[name] for name in shown), "first then"),
        tuple((f"{change.resource} {change.factor - 1:+.0%}",
               *(f"{_share(change, name):+.1%}" if change.after else "-" for name in shown),
               change.turns) for change in changes))


def _share(change: Change, name: str) -> float:
    return change.after[name] / change.before[name] - 1


def _limit_line(figure: go.Figure, usable_bytes: int) -> None:
    figure.add_vline(x=usable_bytes / _GIB, line={"color": PALETTE[4], "dash": "dash", "width": 1.5},
                     name=f"usable {format_bytes(usable_bytes)}", showlegend=True)


def _bytes(value: Any) -> str:
    return format_bytes(round(value))


def _label(one: Candidate | Trained) -> str:
    return one.layout.text + ("" if one.fits else " (does not fit)")
