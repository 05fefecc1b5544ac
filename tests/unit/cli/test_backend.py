"""`dayzero backend`: the list, the check, exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dayzero.cli import app
from dayzero.errors import UsageError

pytest.importorskip("torch")
RUNNER = CliRunner()


def test_the_list_has_all_and_says_why_not() -> None:
    made = RUNNER.invoke(app, ["backend", "list", "--json"])
    rows = {row["name"]: row for row in json.loads(made.stdout)}
    assert {"cpu", "cuda", "simulated"} <= set(rows)
    assert rows["cpu"]["available"] and rows["cpu"]["devices"] >= 1 and rows["cpu"]["described"]["cores"]
    assert all(bool(row["reason"]) != row["available"] for row in rows.values())


def test_a_check_prints_json_and_a_table() -> None:
    made = RUNNER.invoke(app, ["backend", "check", "cpu", "--only", "device,layouts", "--json"])
    told = json.loads(made.stdout)
    assert made.exit_code == 0 and told["passed"]
    assert [(each["check"], each["status"]) for each in told["checks"]] == [("device", "pass"), ("layouts", "pass")]
    made = RUNNER.invoke(app, ["backend", "check", "cpu", "--only", "copies"])
    assert "backend cpu: pass (1 pass)" in made.stdout and "13 dtypes" in made.stdout


def test_a_failed_check_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from dayzero.backends.cpu import CpuBackend

    monkeypatch.setattr(CpuBackend, "describe", lambda self: {})
    made = RUNNER.invoke(app, ["backend", "check", "cpu", "--only", "device"])
    assert made.exit_code == 1
    assert "backend cpu: fail (1 fail)" in made.stdout and "describe() says nothing" in made.stdout


@pytest.mark.parametrize("arguments", [["check"], ["list", "cpu"], ["check", "cpuu"], ["check", "cpu", "--only", "x"]])
def test_what_is_wrong_is_refused(arguments: list[str]) -> None:
    made = RUNNER.invoke(app, ["backend", *arguments])
    assert isinstance(made.exception, UsageError)
