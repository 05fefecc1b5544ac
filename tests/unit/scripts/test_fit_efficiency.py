"""The fit of efficiencies: its minimiser, its file, and that figures which made a table are found again from it."""

from __future__ import annotations

import csv
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.config_release import LLAMA, release

from dayzero.data.efficiency import Efficiency, efficiency
from dayzero.fitting import least_squares

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_efficiency", SCRIPTS / "fit_efficiency.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start() -> dict[str, Any]:
    return tomllib.loads((SCRIPTS / "efficiency_start.toml").read_text())


def test_the_minimum_of_a_curved_valley(fit: ModuleType) -> None:
    # Rosenbrock's function: the minimum is at (1, 1)
    found = least_squares(lambda x: np.array([1 - x[0], 10 * (x[1] - x[0] ** 2)]), np.array([-1.2, 1.0]), 500)
    assert found == pytest.approx([1, 1], abs=1e-3)


def test_the_file_says_what_is_shipped(fit: ModuleType) -> None:
    again = msgspec.convert(tomllib.loads(fit.written(efficiency())), Efficiency)
    assert again == efficiency()


def test_figures_that_made_a_table_are_found_again(fit: ModuleType, start: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    release(tmp_path / "r" / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    figures, rows = fit.Figures(start), []
    for requests in (1, 4, 16, 64, 128):
        for tokens, output in ((128, 512), (1024, 256), (4096, 128)):
            for tp in (1, 2, 4):
                row = {"source": "x", "model": "Meta-Llama-3.1-8B", "gpu": "h100", "num_gpus": tp, "precision": "bf16",
                       "framework": "vllm 1", "tp": tp, "ep": 1, "dp": 1, "dp_attention": 0, "isl": tokens,
                       "osl": output, "concurrency": requests, "mode": "agg", "notes": "", "tpot_ms_mean": 1,
                       "ttft_ms_mean": 1}
                rows.append(row)
    points = tmp_path / "points.csv"
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    sample = fit.gather(points, [tmp_path / "r"], fit.blank(start))
    assert len(sample.cases) == len(rows)
    true = figures.first.copy()
    number = figures.keys.index(("generation", "linear_bytes", 0))
    assert np.exp(true[number]) == pytest.approx(0.75)
    true[number] = np.log(0.6)
    sample.measured = figures.predict(true, sample)
    assert np.abs(figures.predict(figures.first, sample) / sample.measured - 1).max() > 0.1
    found = figures.fitted(sample)
    # 45 points do not outweigh where the figures start from, which is held on to
    assert 0.6 < np.exp(found[number]) < 0.72
    assert np.abs(figures.predict(found, sample) / sample.measured - 1).mean() < 0.02
