"""`dayzero pool`: a table, JSON, and two lines for what is no trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dayzero.cli import app
from dayzero.errors import UsageError
from dayzero.runtime.replay import trace_of, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    write_trace(trace_of("two tensors", [(1, 3 * 2**20, 0), (2, 2**20, 0), (1, -3 * 2**20, 0)]), tmp_path / "t.json")
    return tmp_path / "t.json"


def test_the_table_has_every_allocator(trace: Path) -> None:
    done = CliRunner().invoke(app, ["pool", "replay", str(trace)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "two tensors: 2 allocations, at most 4.00 MiB in use" in done.stdout
    for name in ("best fit", "buddy", "torch caching", "torch expandable"):
        assert name in done.stdout


def test_json_has_the_numbers(trace: Path) -> None:
    done = CliRunner().invoke(app, ["pool", "replay", str(trace), "--json"])
    found = json.loads(done.stdout)
    assert (found["peak"], found["allocations"], found["frees"]) == (4 * 2**20, 2, 1)
    assert {one["allocator"]: one["reserved"] for one in found["results"]}["torch caching"] == 22 * 2**20


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    done = CliRunner().invoke(app, ["pool", "replay", str(tmp_path / "t.json")])
    assert isinstance(done.exception, UsageError)
