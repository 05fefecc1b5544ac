"""The fit of efficiencies: its minimiser, its file, and that figures which made a table are found again from it."""

from __future__ import annotations

import csv
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.config_release import LLAMA, release

from dayzero.data.efficiency import Efficiency, efficiency
from dayzero.fitting import least_squares
from dayzero.stages.plan.times.serving import served

POINT = {"source": "x", "model": "Meta-Llama-3.1-8B", "gpu": "h100", "num_gpus": 1, "precision": "bf16",
         "framework": "vllm 1", "tp": 1, "ep": 1, "dp": 1, "dp_attention": 0, "isl": 1024, "osl": 256,
         "concurrency": 16, "mode": "agg", "notes": "", "tpot_ms_mean": 1, "ttft_ms_mean": 1}
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


def test_a_release_that_one_family_was_run_with_has_no_figures_of_its_own(fit: ModuleType) -> None:
    def sample(*families: str) -> SimpleNamespace:
        return SimpleNamespace(cases=[SimpleNamespace(engine="e", version="1")] * len(families), families=families)

    assert fit.releases(sample(*"a" * 30)) == []
    assert fit.releases(sample(*"a" * 30, *"b" * 4)) == []
    assert fit.releases(sample(*"a" * 30, *"b" * 5)) == [("e", "1")]
    assert fit.releases(sample(*"a" * 10, *"b" * 5)) == []


def test_the_fit_predicts_as_the_file_does(fit: ModuleType, start: dict[str, Any], tmp_path: Path) -> None:
    """Figures of a release, an engine and a scheme reach a prediction by the file as they do in the fit; and changed
    together they have the slopes that they have one by one."""
    (tmp_path / "r").mkdir()
    release(tmp_path / "r" / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    points = tmp_path / "points.csv"
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, POINT)
        writer.writeheader()
        writer.writerows([POINT, POINT | {"framework": "vllm 2", "gpu": "b200"}])
    sample = fit.gather(points, [tmp_path / "r"], fit.blank(start))
    figures = fit.Figures(start, [("vllm", "2")])
    vector = figures.first + 0.1 * np.sin(np.arange(len(figures.first)))
    known = fit.convert(figures, vector, 2, {}, [])
    for case, made in zip(sample.cases, figures.predict(vector, sample), strict=True):
        generation, engine, _ = case.figures(known)
        assert served(case.load, generation, engine, known.common) == pytest.approx(tuple(made))
    free = np.arange(len(vector))

    def residuals(values: Any) -> Any:
        return np.concatenate([*figures.predict(values, sample).T, values - figures.first])

    off = residuals(vector)
    alone = np.stack([(residuals(vector + fit.STEP * axis) - off) / fit.STEP for axis in np.eye(len(vector))], axis=1)
    assert np.array_equal(figures.slopes(residuals, vector, off, free, sample), alone)


def test_figures_that_made_a_table_are_found_again(fit: ModuleType, start: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    release(tmp_path / "r" / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    figures = fit.Figures(start)
    rows = [POINT | {"num_gpus": tp, "tp": tp, "isl": tokens, "osl": output, "concurrency": requests}
            for requests in (1, 4, 16, 64, 128) for tokens, output in ((128, 512), (1024, 256), (4096, 128))
            for tp in (1, 2, 4)]
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
