"""How far predictions are from what was measured: of all points, and by model, device and layout.

Of each quantity that a table states: predictions and measurements to compare, mean and median of the relative errors,
the share within 20 %, the mean of the signed errors, and how many measurements the intervals hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from rich.markup import escape
from rich.table import Table

from dayzero.schema import Noun

Row = Mapping[str, str]
CLOSE = 0.2
"""Relative error of a prediction that is near."""
DEGREES = ("tp", "pp", "ep", "dp")
"""Columns that a layout is named by."""
MOST_SHOWN = 12
"""Groups of a kind that the terminal shows."""


@dataclass(frozen=True)
class Quantity:
    """What is predicted, by its columns."""

    name: str
    """What it is called."""
    predicted: str
    """Column of the predictions."""
    measured: str
    """Column of the points."""
    low: str = ""
    """Column with the low end; empty: there is none."""
    high: str = ""
    """Column with the high end."""


QUANTITIES = {
    "serve": (Quantity("time between tokens", "tpot_ms", "tpot_ms_mean", "tpot_low_ms", "tpot_high_ms"),
              Quantity("time to the first token", "ttft_ms", "ttft_ms_mean", "ttft_low_ms", "ttft_high_ms")),
    "memory": (Quantity("weights", "weights_gib_per_gpu", "weights_gib_per_gpu"),
               Quantity("tokens of the cache", "kv_cache_tokens", "kv_cache_tokens")),
    "train": (Quantity("time of a step", "step_time_s", "step_time_s", "step_time_low_s", "step_time_high_s"),
              Quantity("operations a second", "tflops_per_gpu", "tflops_per_gpu")),
}
"""By kind of points."""


class Errors(Noun, frozen=True, kw_only=True):
    """Of one quantity over a group of points."""

    quantity: str
    """What it is."""
    by: str
    """all, model, device or layout."""
    group: str
    """Which one."""
    points: int
    """Points of the group."""
    predicted: int
    """Points with a prediction."""
    compared: int
    """Points with a prediction and a measurement."""
    mean: float | None
    """Mean relative error; None: nothing to compare."""
    median: float | None
    """Median."""
    near: float | None
    """Share of errors of at most 20 %."""
    bias: float | None
    """Mean of predicted / measured - 1."""
    inside: float | None
    """Share of the measurements that the intervals hold; None: there are no intervals."""


def errors(points: Sequence[Row], predictions: Sequence[Row], kind: str) -> list[Errors]:
    """Of all points, then by model, device and layout, those first that most points are of. Quantities that no point
    states are left out."""
    made = []
    for quantity in QUANTITIES[kind]:
        if not any(_number(point.get(quantity.measured, "")) for point in points):
            continue
        for by, names in _groups(points):
            groups: dict[str, list[int]] = {}
            for number, name in enumerate(names):
                groups.setdefault(name, []).append(number)
            for name, own in sorted(groups.items(), key=lambda item: -len(item[1])):
                made.append(_of(quantity, by, name, [(points[i], predictions[i]) for i in own]))
    return made


def _groups(points: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    yield "all", ["all"] * len(points)
    yield "model", [point.get("model", "") or "not stated" for point in points]
    yield "device", [point.get("gpu", "") or "not stated" for point in points]
    yield "layout", [_layout(point) for point in points]


def _layout(point: Row) -> str:
    """`tp8 ep8`, with what works apart."""
    stated = {key: _number(point.get(key, "")) for key in DEGREES}
    degrees = [f"{key}{degree:g}" for key, degree in stated.items() if degree and degree > 1]
    alone = ["tp1"] if any(stated.values()) else []
    apart = ["workers apart"] if point.get("mode", "").startswith("disagg") else []
    return " ".join([*(degrees or alone), *apart]) or "not stated"


def _of(quantity: Quantity, by: str, name: str, pairs: Sequence[tuple[Row, Row]]) -> Errors:
    values = [(_number(point.get(quantity.measured, "")), _number(told.get(quantity.predicted, "")),
               _number(told.get(quantity.low, "")), _number(told.get(quantity.high, ""))) for point, told in pairs]
    both = [one for one in values if one[0] and one[1] is not None]
    off = np.array([predicted / measured - 1 for measured, predicted, _, _ in both
                    if measured and predicted is not None])
    held = [low <= measured <= high for measured, _, low, high in both
            if measured and low is not None and high is not None]
    sizes = np.abs(off)
    return Errors(
        quantity=quantity.name, by=by, group=name, points=len(values),
        predicted=sum(one[1] is not None for one in values), compared=len(both),
        mean=float(sizes.mean()) if both else None, median=float(np.median(sizes)) if both else None,
        near=float((sizes <= CLOSE).mean()) if both else None, bias=float(off.mean()) if both else None,
        inside=sum(held) / len(held) if held else None)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) else None


def table(found: Sequence[Errors]) -> Table:
    """For the terminal: the largest groups of each kind."""
    made = Table("by", "points of", "points", "predicted", "mean error", "median", "within 20 %", "bias", "in interval",
                 title="predicted against measured")
    last, shown = ("", ""), 0
    for one in found:
        shown = shown + 1 if (one.quantity, one.by) == last else 1
        if one.quantity != last[0]:
            made.add_section()
            made.add_row("", f"[bold]{one.quantity}[/]")
        last = one.quantity, one.by
        if shown == MOST_SHOWN + 1:
            made.add_row("", f"other {one.by}s: --json")
        if shown <= MOST_SHOWN:
            made.add_row("" if one.by == "all" else one.by, escape(one.group), str(one.points), str(one.predicted),
                         *(_percent(value) for value in (one.mean, one.median, one.near)),
                         "" if one.bias is None else f"{100 * one.bias:+.1f} %", _percent(one.inside))
    return made


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
