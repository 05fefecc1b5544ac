"""dayzero score and dayzero calibrate as a user sees them."""

from __future__ import annotations

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_release import LLAMA, release

from dayzero.cli import main

POINT = {"source": "x", "model": "Meta-Llama-3.1-8B", "gpu": "h100", "num_gpus": "1", "precision": "bf16",
         "framework": "vllm 1", "tp": "1", "ep": "1", "dp": "1", "dp_attention": "0", "isl": "1024", "osl": "256",
         "concurrency": "8", "mode": "agg", "notes": "", "tpot_ms_mean": "20", "ttft_ms_mean": "300"}


@pytest.fixture
def dayzero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """dayzero(arguments) -> (exit code, standard output, standard error), in a folder with releases and points."""
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").mkdir()
    release(tmp_path / "r" / "meta-llama__Meta-Llama-3.1-8B", LLAMA)
    rows = [{**POINT, "isl": tokens, "concurrency": requests} for tokens in ("256", "1024", "4096")
            for requests in ("1", "4", "16", "64")]
    with (tmp_path / "points.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, POINT)
        writer.writeheader()
        writer.writerows(rows)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dayzero", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


SERVE = ("points.csv", "--releases", "r", "--out", "out.csv", "--kind", "serve")


def test_score_says_how_far_off_it_is(dayzero: Any) -> None:
    code, out, told = dayzero("score", *SERVE)
    assert code == 0 and "12 of 12 rows predicted" in told
    assert "time between tokens" in out and "h100" in out and "tp1" in out
    found = json.loads(dayzero("score", *SERVE, "--json")[1])
    assert found["rows"] == found["predicted"] == 12
    assert {one["by"] for one in found["errors"]} == {"all", "model", "device", "layout"}
    assert all(one["compared"] == 12 for one in found["errors"])


def test_what_calibrate_writes_score_takes(dayzero: Any, tmp_path: Path) -> None:
    """Twenty milliseconds between tokens at any load is more than twice as long as an H100 takes."""
    code, out, _ = dayzero("calibrate", "points.csv", "--releases", "r", "--out", "own.toml")
    assert code == 0 and "12 rows of points.csv" in out and "mean error, left out" in out
    before, after = (json.loads(dayzero("score", *SERVE, "--json", *more)[1])["errors"][0]["mean"]
                     for more in ((), ("--calibration", "own.toml")))
    assert after < before


@pytest.mark.parametrize("arguments", [
    ("score", "points.csv", "--releases", "r", "--out", "out.csv", "--kind", "memory", "--calibration", "own.toml"),
    ("score", *SERVE, "--calibration", "points.csv"), ("calibrate", "none.csv", "--releases", "r", "--out", "own.toml"),
    ("calibrate", "points.csv", "--releases", "r", "--out", "points.csv"),
])
def test_what_is_refused(dayzero: Any, arguments: tuple[str, ...]) -> None:
    code, out, told = dayzero(*arguments)
    assert code == 2 and out == "" and len(told.strip().splitlines()) == 2
