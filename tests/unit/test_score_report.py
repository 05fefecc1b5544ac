"""How far predictions are from measurements, by group."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from dayzero.score_report import MOST_SHOWN, errors, table

POINTS = [{"model": "a", "gpu": "H100", "tp": "8", "ep": "8", "mode": "agg", "tpot_ms_mean": "10", "ttft_ms_mean": ""},
          {"model": "a", "gpu": "", "tp": "8", "ep": "8", "mode": "agg", "tpot_ms_mean": "20", "ttft_ms_mean": ""},
          {"model": "b", "gpu": "H100", "tp": "1", "ep": "", "mode": "disagg", "tpot_ms_mean": "40"},
          {"model": "b", "gpu": "H100", "tp": "", "ep": "", "mode": "", "tpot_ms_mean": "", "ttft_ms_mean": ""}]
TOLD = [{"tpot_ms": "11", "tpot_low_ms": "9", "tpot_high_ms": "12"},
        {"tpot_ms": "10", "tpot_low_ms": "9", "tpot_high_ms": "12"}, {"tpot_ms": ""}, {"tpot_ms": "5"}]


def test_by_hand() -> None:
    found = errors(POINTS, TOLD, "serve")
    assert {one.quantity for one in found} == {"time between tokens"}  # no point states the other
    whole = found[0]
    assert (whole.by, whole.points, whole.predicted, whole.compared) == ("all", 4, 3, 2)
    # errors of +10 % and -50 %
    assert whole.mean == pytest.approx(0.3) and whole.median == pytest.approx(0.3) and whole.near == 0.5
    assert whole.bias == pytest.approx(-0.2) and whole.inside == 0.5
    groups = {(one.by, one.group): one for one in found}
    assert groups["model", "b"].mean is None and groups["model", "b"].predicted == 1
    assert {group for by, group in groups if by == "layout"} == {"tp8 ep8", "tp1 workers apart", "not stated"}
    assert groups["device", "not stated"].bias == pytest.approx(-0.5)


def test_the_table_shows_the_largest_groups() -> None:
    points = [{**POINTS[0], "model": f"m{i}"} for i in range(MOST_SHOWN + 5)]
    console = Console(width=140, record=True, file=StringIO())
    console.print(table(errors(points, [TOLD[0]] * len(points), "serve")))
    text = console.export_text()
    assert "other models: --json" in text and f"m{MOST_SHOWN - 1}" in text and f"m{MOST_SHOWN + 1}" not in text
