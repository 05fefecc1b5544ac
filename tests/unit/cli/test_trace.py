"""`dayzero trace` from its arguments to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.support.graphs import layered_graph

from dayzero.cli import main
from dayzero.schema import to_json
from dayzero.stages.trace import to_contract

TARGET = """[cluster]
device = {memory_bytes = 1073741824, memory_bandwidth = 100.0, flops = {bf16 = 1000.0}, name = "made"}
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.json"
    path.write_bytes(to_json(to_contract(layered_graph())))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dayzero", "trace", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_views(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, saved) == 0
    told = capsys.readouterr().out
    assert "missing: aten.x" in told and "prefill: operators by flops" in told and "2 x full" in told
    assert run(monkeypatch, saved, "--view", "kinds,tree") == 0
    told = capsys.readouterr().out
    assert "in no layer" in told and "2 alike, each" in told and "operators by flops" not in told
    assert run(monkeypatch, saved, "--view", "control-flow", "--view", "breaks") == 0
    told = capsys.readouterr().out
    assert "b.py:9" in told and "stumble here" in told


def test_the_contract_with_what_was_asked_for(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "target.toml").write_text(TARGET)
    assert run(monkeypatch, saved, "--json", "--by", "time", "-t", tmp_path / "target.toml", "--view", "breaks") == 0
    made = json.loads(capsys.readouterr().out)
    assert {"parameters", "parameters_text", "seconds", "phases", "operators", "control_flow", "missing", "layer_kinds",
            "operations", "stand_ins", "supplied", "isolation", "hot_spots", "breaks"} <= made.keys()
    assert "coverage" not in made and "export" not in made
    assert made["hot_spots"]["prefill"][0]["bound"] == "memory"


def test_a_diff(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
                ) -> None:
    other = tmp_path / "other.json"
    graph = layered_graph()
    other.write_bytes(to_json(to_contract(msgspec.structs.replace(graph, operators=graph.operators[:3]))))
    assert run(monkeypatch, saved, "--diff", other) == 0
    assert "+ aten.add bf16" in capsys.readouterr().out
    assert run(monkeypatch, saved, "--diff", other, "--json") == 0
    assert json.loads(capsys.readouterr().out)["calls"] == {"new": ["aten.add bf16"], "gone": []}


def test_what_a_trace_is_compared_with_is_looked_at_before_it_is_made(
        saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made.out").write_bytes(saved.read_bytes())
    assert run(monkeypatch, saved, "--diff", tmp_path / "made.out") == 0
    monkeypatch.setattr("dayzero.cli.trace._graph", lambda *_arguments, **_options: pytest.fail("it was traced"))
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "bad.json").write_text("{}")
    for other in ("notes.txt", "bad.json", "gone"):
        capsys.readouterr()
        assert run(monkeypatch, saved, "--diff", tmp_path / other) == 2
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "told"), [
    (("--view", "kind"), 'did you mean "kinds"'),
    (("--by", "time"), "--by time needs a device"),
    (("--by", "cost"), "cost"),
    (("--export",), "--export needs a release"),
    (("--top", "0"), "--top"),
])
def test_wrong_requests(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                        arguments: tuple[str, ...], told: str) -> None:
    assert run(monkeypatch, saved, *arguments) == 2
    printed = capsys.readouterr()
    assert told in printed.err and printed.out == ""
