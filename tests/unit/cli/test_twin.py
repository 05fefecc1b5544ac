"""`dayzero twin`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import twins
from typer.testing import CliRunner

from dayzero.cli import app
from dayzero.errors import UsageError

CARD = str(twins.CARDS / "gpt-oss-20b.toml")


def test_numbers_of_both(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["twin", CARD, str(tmp_path / "t")])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["hidden_size", "2880", "320", "hidden_size"] in rows
    assert ["head_dim", "64", "same", "head_dim"] in rows
    assert "names from card" in result.stdout


def test_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["twin", CARD, str(tmp_path / "t"), "--json", "--seed", "3", "--layers", "5"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["seed"], summary["layers"]) == (3, [0, 1, 2, 3, 4])
    assert {"fact": "experts", "keys": ["num_local_experts"], "original": 32, "twin": 8} in summary["numbers"]


@pytest.mark.parametrize("options", [["--scale", "1000"], ["--layers", "1"]])
def test_what_cannot_be_is_a_usage_error(options: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["twin", CARD, str(tmp_path / "t"), *options])
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "t").exists()
