"""A comparison of two golden dumps as one HTML page: error by place, layer by module, routers, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from statistics import median
from typing import NamedTuple

import plotly.graph_objects as go

from dayzero.schema.comparison import Comparison, PlaceDistance, TokenDifference

from .charts import PALETTE, Chart, as_json, plain
from .html import page

LEAST = 1e-3
"""Ratios of error to tolerance below it are drawn as it."""


class Sheet(NamedTuple):
    """A table of the page."""

    title: str
    """Heading."""
    columns: tuple[str, ...]
    """Its head."""
    rows: tuple[tuple[str, ...], ...]
    """Texts."""


def comparison_page(found: Comparison) -> str:
    """The page."""
    first = found.first_divergence
    lines = [f"reference: {found.a.folder} ({found.a.engine}, {found.a.dtype}, {found.a.layout})",
             f"candidate: {found.b.folder} ({found.b.engine}, {found.b.dtype}, {found.b.layout})",
             f"tolerances from {len(found.noise)} correct runs" if found.noise else "tolerances are estimated"]
    if first is not None:
        lines.append(f"first divergence: {first.place}")
    if found.suspicion:
        lines.append(f"suspicion: {found.suspicion}")
    charts = [_by_layer(found.places), _by_place(found.places), _by_module(found.places), _routers(found),
              _by_token(found.tokens)]
    failed = sum(not check.passed for check in found.checks)
    return page(
        "page.html.j2", ("charts.js",), title=f"{found.b.release} against {found.a.release}",
        kicker=f"{found.b.release} against {found.a.release}, judged by {found.judge}",
        headline="The same within tolerance" if found.passed else f"{failed} of {len(found.checks)} checks fail",
        tone="good" if found.passed else "bad", lines=lines, charts=[each for each in charts if each is not None],
        tables=_tables(found))


def _by_layer(places: Sequence[PlaceDistance]) -> Chart | None:
    """What modules of each layer give: the largest error and the median one."""
    layers: dict[int, list[PlaceDistance]] = {}
    for each in places:
        if each.layer is not None and each.what == "output" and not each.lost:
            layers.setdefault(each.layer, []).append(each)
    if not layers:
        return None
    numbers = sorted(layers)
    worst = [max(layers[number], key=lambda each: each.relative_l2 / (each.tolerance or LEAST)) for number in numbers]
    lines = (("nearest to its tolerance", [each.relative_l2 for each in worst], PALETTE[0], "solid"),
             ("median of its modules", [median(each.relative_l2 for each in layers[number]) for number in numbers],
              PALETTE[2], "solid"),
             ("tolerance of the former", [each.tolerance for each in worst], PALETTE[4], "dash"))
    figure = go.Figure()
    for name, values, colour, dash in lines:
        figure.add_scatter(x=numbers, y=[value or None for value in values], mode="lines+markers", name=name,
                           marker={"size": 4}, line={"color": colour, "dash": dash, "width": 2})
    figure.update_layout(yaxis={"type": "log", "title": "relative L2 error", "tickformat": "~g"}, height=360,
                         xaxis={"title": "layer"}, legend={"orientation": "h", "y": 1.12})
    return Chart("by-layer", "Error by layer", f"Line chart: relative error in {len(numbers)} layers.",
                 "Of what the modules of a layer give.", as_json(figure),
                 ("layer", "nearest to its tolerance", "relative L2", "tolerance", "median"),
                 tuple((str(number), each.name, f"{each.relative_l2:.3g}", f"{each.tolerance:.3g}", f"{middle:.3g}")
                       for number, each, middle in zip(numbers, worst, lines[1][1], strict=True)))


def _by_token(tokens: Sequence[TokenDifference]) -> Chart | None:
    """Positions at which other tokens would be chosen."""
    if not tokens:
        return None
    figure = go.Figure()
    for name, tie, colour in (("near-tie", True, PALETTE[6]), ("beyond what noise explains", False, PALETTE[4])):
        own = [each for each in tokens if each.tie is tie]
        figure.add_scatter(
            x=[each.position for each in own], y=[each.lead or None for each in own], mode="markers", name=name,
            marker={"size": 7, "color": colour},
            text=[f"sequence {each.sequence}: {each.a} becomes {each.b}" for each in own],
            hovertemplate="position %{x}, %{y:.3g} nats<br>%{text}<extra></extra>")
    figure.update_layout(yaxis={"type": "log", "title": "lead that was lost, nats", "tickformat": "~g"}, height=340,
                         xaxis={"title": "position in the sequence"}, legend={"orientation": "h", "y": 1.12})
    return Chart("tokens", "Tokens that would be chosen otherwise",
                 f"Dots: {len(tokens)} positions with another likeliest token.",
                 "By how much the reference's token leads over the candidate's in the reference. A near-tie may be "
                 "turned by the noise of correct runs.", as_json(figure),
                 ("sequence", "position", "given", "reference's", "leads its second by", "candidate's",
                  "leads its second by", "lead in the reference", "near-tie"),
                 tuple((str(each.sequence), str(each.position), "" if each.given < 0 else str(each.given), str(each.a),
                        f"{each.a_margin:.3g}", str(each.b), f"{each.b_margin:.3g}", f"{each.lead:.3g}",
                        "yes" if each.tie else "NO") for each in tokens))


def _by_place(places: Sequence[PlaceDistance]) -> Chart | None:
    """What modules give, in the order of execution."""
    shown = [each for each in places if each.what in ("output", "logits") and not each.lost]
    if not shown:
        return None
    figure = go.Figure()
    names = [plain(each.name) for each in shown]
    figure.add_scatter(x=names, y=[each.relative_l2 or None for each in shown], mode="lines+markers", name="error",
                       marker={"size": 4}, line={"color": PALETTE[0], "width": 2})
    figure.add_scatter(x=names, y=[each.noise or None for each in shown], mode="lines", name="noise of correct runs",
                       line={"color": PALETTE[5], "width": 1})
    figure.add_scatter(x=names, y=[each.tolerance for each in shown], mode="lines", name="tolerance",
                       line={"color": PALETTE[4], "dash": "dash", "width": 1.5})
    figure.update_layout(yaxis={"type": "log", "title": "relative L2 error", "tickformat": "~g"}, height=420,
                         xaxis={"title": "place, in the order of execution", "showticklabels": False},
                         legend={"orientation": "h", "y": 1.12})
    return Chart("places", "Error by place", f"Line chart: relative error at {len(shown)} places with their tolerance.",
                 "||x - r|| / ||r|| of what each module gives, against what correct runs show there.", as_json(figure),
                 ("place", "relative L2", "noise", "tolerance", "cosine", "passed"),
                 tuple((each.name, f"{each.relative_l2:.3g}", f"{each.noise:.3g}", f"{each.tolerance:.3g}",
                        f"{each.cosine:.6f}", "yes" if each.passed else "NO") for each in shown))


def _by_module(places: Sequence[PlaceDistance]) -> Chart | None:
    """Error over tolerance: one column for each layer, one row for each module in it."""
    worst: dict[tuple[str, int], float] = {}
    for each in places:
        if each.layer is not None and each.what == "output":
            key = _inside(each), each.layer
            ratio = each.relative_l2 / each.tolerance if each.tolerance else float(each.relative_l2 > 0)
            worst[key] = max(worst.get(key, 0.0), ratio if each.passed else max(ratio, 1.0))
    if not worst:
        return None
    rows = list(dict.fromkeys(module for module, _ in worst))
    layers = sorted({layer for _, layer in worst})
    cells = [[log10(max(worst[row, layer], LEAST)) if (row, layer) in worst else None for layer in layers]
             for row in rows]
    figure = go.Figure(go.Heatmap(
        z=cells, x=layers, y=[plain(row) for row in rows], zmin=-2, zmax=2, xgap=1, ygap=1,
        colorscale=[[0, "#2f9e77"], [0.45, "#c9e4d6"], [0.5, "#f4d58d"], [0.55, "#e08a2c"], [1, "#a4161a"]],
        colorbar={"title": {"text": "error / tolerance"}, "tickvals": [-2, -1, 0, 1, 2],
                  "ticktext": ["0.01", "0.1", "1", "10", "100"]},
        hovertemplate="layer %{x}, %{y}: 10^%{z:.2f} of its tolerance<extra></extra>"))
    figure.update_layout(xaxis={"title": "layer", "tick0": layers[0], "dtick": 1 + len(layers) // 20},
                         yaxis={"autorange": "reversed", "automargin": True},
                         height=140 + 22 * len(rows))
    return Chart("modules", "Layers and modules",
                 f"Heat map of {len(rows)} modules in {len(layers)} layers: error over tolerance.",
                 "Beyond 1 a place is out of its tolerance.", as_json(figure),
                 ("module", *(str(layer) for layer in layers)),
                 tuple((row, *(f"{worst[row, layer]:.3g}" if (row, layer) in worst else "" for layer in layers))
                       for row in rows))


def _inside(place: PlaceDistance) -> str:
    """Path of a module in its layer; the layer itself is `layer`."""
    _, _, inside = f"{place.module}.".partition(f".{place.layer}.")
    return inside.rstrip(".") or "layer"


def _routers(found: Comparison) -> Chart | None:
    if not found.routers:
        return None
    figure = go.Figure()
    names = [plain(each.name) for each in found.routers]
    share = [100 * each.legitimate / each.rows if each.rows else 0.0 for each in found.routers]
    other = [100 * (each.flips - each.legitimate) / each.rows if each.rows else 0.0 for each in found.routers]
    figure.add_bar(x=names, y=share, name="within noise of the scores", marker={"color": PALETTE[6]})
    figure.add_bar(x=names, y=other, name="beyond it", marker={"color": PALETTE[4]})
    figure.update_layout(barmode="stack", yaxis={"title": "rows with another choice, %"}, height=320,
                         xaxis={"title": "router", "showticklabels": len(names) <= 12},
                         legend={"orientation": "h", "y": 1.15})
    return Chart("routers", "Routers", f"Stacked bars: rows that {len(names)} routers send to other experts.",
                 "Choices are compared as sets; a flip within the noise of the scores is legitimate.", as_json(figure),
                 ("router", "rows", "flips", "legitimate", "overlap", "largest margin", "tolerance"),
                 tuple((each.name, str(each.rows), str(each.flips), str(each.legitimate), f"{each.overlap:.4f}",
                        f"{each.margin:.3g}", f"{each.tolerance:.3g}") for each in found.routers))


def _tables(found: Comparison) -> list[Sheet]:
    failed = tuple((check.name, f"{check.observed:.3g}", f"{check.tolerance:.3g}", check.source)
                   for check in found.checks if not check.passed)
    logits = tuple((each.name, str(each.rows), f"{each.argmax:.2%}", f"{each.margin:.3g}",
                    f"{each.lead:.3g}", str(each.ties), f"{each.top:.2%} of {each.k}", f"{each.kl_mean:.3g}",
                    f"{each.kl_max:.3g}")
                   for each in found.logits)
    patterns = tuple((each.name, f"{each.explained:.1%}", each.words) for each in found.pattern)
    sheets = [
        Sheet("Checks that fail", ("check", "observed", "tolerance", "where the tolerance is from"), failed),
        Sheet("What the error looks like", ("pattern", "explains", "in words"), patterns),
        Sheet("Tokens", ("logits", "rows", "same likeliest token", "largest margin lost", "that noise explains",
                         "rows within that", "same top tokens", "mean KL", "largest KL"), logits),
        Sheet("Good to know", ("note",), tuple((note,) for note in found.told)),
    ]
    return [sheet for sheet in sheets if sheet.rows]
