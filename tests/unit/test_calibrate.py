"""Calibration: factors that made a table are found again, and nothing is changed where nothing is known."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.support.config_release import LLAMA, release

from dayzero.calibrate import CAUSES, FEW, Model, calibrate, calibration, fitted
from dayzero.data.causes import FACTORS
from dayzero.data.efficiency import efficiency
from dayzero.errors import UsageError
from dayzero.fitting import Sample, gather
from dayzero.schema.calibration import Calibration
from dayzero.score import Models
from dayzero.score_serve import predict_serving

POINT = {"source": "x", "model": "Meta-Llama-3.1-8B", "gpu": "h100", "num_gpus": "1", "precision": "bf16",
         "framework": "vllm 1", "tp": "1", "ep": "1", "dp": "1", "dp_attention": "0", "isl": "1024", "osl": "256",
         "concurrency": "8", "mode": "agg", "notes": "", "tpot_ms_mean": "1", "ttft_ms_mean": "1"}
ROWS = [{**POINT, "tp": tp, "num_gpus": tp, "isl": tokens, "concurrency": requests} for tp in ("1", "2", "4")
        for tokens in ("256", "4096") for requests in ("1", "8", "32", "128")]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("releases")
    release(root / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    return root


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def sample(tmp_path: Path, releases: Path, factors: dict[str, float], rows: list[dict[str, str]] = ROWS) -> Sample:
    """Points as they would be measured with those factors."""
    made = gather(table(tmp_path / "points.csv", rows), [releases], efficiency())
    logs = np.array([np.log(factors.get(cause, 1.0)) for cause in CAUSES])
    made.measured = Model(efficiency()).predict(logs, made)
    return made


def test_no_factors_are_the_shipped_figures(tmp_path: Path, releases: Path) -> None:
    made = sample(tmp_path, releases, {})
    told = [one.tpot[0] for one in predict_serving(ROWS, Models([releases])) if one.tpot]
    assert made.measured[:, 0] == pytest.approx(told)
    found = fitted(made, "points.csv")
    assert not found.changed and found.calibration.factors == {} and found.calibration.tpot is None


def test_factors_that_made_a_table_are_found_again(tmp_path: Path, releases: Path) -> None:
    made = sample(tmp_path, releases, {"products": 1.5, "prefill": 0.7})
    found = fitted(made, "points.csv")
    errors = found.calibration.errors
    assert found.changed and found.calibration.rows == len(ROWS)
    assert found.calibration.factors["products"] > 1.3 and found.calibration.factors["prefill"] < 0.85
    assert errors["left out, time between tokens"] < 0.2 * errors["before, time between tokens"]
    assert found.calibration.tpot and found.calibration.tpot[0] <= 1 <= found.calibration.tpot[1]


def test_a_few_rows_change_nothing(tmp_path: Path, releases: Path) -> None:
    found = fitted(sample(tmp_path, releases, {"products": 1.5}, ROWS[: FEW - 1]), "points.csv")
    assert not found.changed and found.reason == f"{FEW - 1} rows that say enough are fewer than {FEW}"


def test_errors_without_a_pattern_change_nothing(tmp_path: Path, releases: Path) -> None:
    made = sample(tmp_path, releases, {})
    made.measured = made.measured * np.exp(np.random.default_rng(0).normal(0, 0.3, made.measured.shape))
    assert not fitted(made, "points.csv").changed


def test_what_is_written_is_read_and_changes_predictions(tmp_path: Path, releases: Path) -> None:
    made = sample(tmp_path, releases, {"products": 1.5})
    rows = [{**row, "tpot_ms_mean": str(1000 * times[0]), "ttft_ms_mean": str(1000 * times[1])}
            for row, times in zip(ROWS, made.measured, strict=True)]
    found = calibrate(table(tmp_path / "measured.csv", rows), [releases], tmp_path / "own.toml")
    assert calibration(tmp_path / "own.toml") == found.calibration
    plain, own = (next(predict_serving(ROWS, Models([releases]), efficiency(one)))
                  for one in (None, found.calibration))
    assert plain.tpot and own.tpot and own.tpot[0] > 1.2 * plain.tpot[0]
    assert own.tpot[0] == pytest.approx(made.measured[0, 0], rel=0.1)


def test_every_factor_has_figures_and_makes_times_longer(tmp_path: Path, releases: Path) -> None:
    shipped = efficiency()
    known = set().union(*(part.__struct_fields__ for part in (shipped.common, *shipped.generations, *shipped.engines)))
    for cause, fields in FACTORS.items():
        assert set(fields) <= known
        changed = efficiency(Calibration(source="x", rows=1, factors={cause: 2.0}))
        assert changed != shipped
    one = efficiency(Calibration(source="x", rows=1, factors={"products": 2.0})).generations[0]
    assert one.linear_bytes == shipped.generations[0].linear_bytes / 2


@pytest.mark.parametrize(("text", "reason"), [
    ("source = 'x'\nrows = 1\n[factors]\nluck = 2.0", "no cause is called luck"),
    ("source = 'x'\nrows = 1\n[factors]\nproducts = 1e9", "not between"), ("nothing", "cannot read"),
    ("source = 'x'\nrows = 1\n[factors]\n[errors]\na = nan", "figures that are none"),
    ("source = 'x'\nrows = -1\n[factors]", "figures that are none"),
])
def test_files_that_are_none(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UsageError, match=reason):
        calibration(tmp_path / "own.toml")


def test_rows_without_a_time_are_left_out(tmp_path: Path, releases: Path) -> None:
    rows = [*ROWS[:3], {**ROWS[3], "ttft_ms_mean": "nan"}, {**ROWS[4], "tpot_ms_mean": "inf"}]
    assert gather(table(tmp_path / "points.csv", rows), [releases], efficiency()).numbers == [0, 1, 2]
