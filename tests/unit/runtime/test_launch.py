"""What a launch makes of the files that ranks leave."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from dayzero.errors import StageError, StoreError
from dayzero.runtime import launch as module
from dayzero.runtime.assignment import RankResult
from dayzero.runtime.launch import Launched, _death, results
from dayzero.schema import to_json


def _rank(folder: Path, rank: int, *, log: str = "", phase: str = "", result: RankResult | None = None) -> None:
    here = folder / f"rank-{rank}"
    here.mkdir()
    (here / "log.txt").write_text(log)
    (here / "phase").write_text(phase)
    if result:
        (here / "result.json").write_bytes(to_json(result))


def test_the_rank_that_died_first_is_named(tmp_path: Path) -> None:
    """The agent takes the others down with SIGTERM (-15): that is not what went wrong."""
    _rank(tmp_path, 0, log="fine", phase="generating")
    _rank(tmp_path, 1, log="x" * 5000 + "ValueError: why", phase="loading bf16")
    (tmp_path / "exits.json").write_bytes(to_json({"0": -15, "1": 1}))
    error = _death(tmp_path, 2, [0, 1])
    assert error.message == "rank 1 of 2 ended with exit code 1 while loading bf16"
    assert error.log.endswith("ValueError: why") and len(error.log) == 3000
    assert str(tmp_path / "rank-1" / "log.txt") in error.hint and "\n" not in error.message + error.hint


def test_a_supervisor_that_dies_shows_its_own_log(tmp_path: Path) -> None:
    _rank(tmp_path, 0)
    (tmp_path / "supervisor.txt").write_text("ModuleNotFoundError: torch")
    error = _death(tmp_path, 1, [0])
    assert error.message == "rank 0 of 1 ended while starting" and error.log == "ModuleNotFoundError: torch"


def test_a_failed_teardown_is_an_event() -> None:
    ranks = tuple(RankResult(rank=rank, device="cpu", passes=(), events=("slow",)) for rank in (0, 1))
    launched = Launched(ranks=ranks, exits=(0, -6), threads=1)
    assert launched.events == ("slow", "rank 1 ended with SIGABRT after all its work was done")


def test_results_of_an_earlier_launch(tmp_path: Path) -> None:
    _rank(tmp_path, 0, result=RankResult(rank=0, device="cpu", passes=()))
    assert [result.rank for result in results(tmp_path, 1)] == [0]
    with pytest.raises(StoreError, match="missing"):
        results(tmp_path, 2)


def test_what_a_failed_launch_left_goes_with_the_next_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that a signal ends leaves nothing."""
    outcomes = [StageError("it died", "see it"), SystemExit(143), Launched(ranks=(), exits=(), threads=1)]

    def fake(assignment: object, folder: Path, *rest: object) -> Launched:
        folder.mkdir()
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "_launch", fake)
    for error, left in ((StageError, ["dp2-failed"]), (SystemExit, ["dp2-failed"]), (None, ["dp2"])):
        with pytest.raises(error) if error else contextlib.nullcontext():
            module.launch(None, tmp_path / "dp2")  # type: ignore[arg-type]
        assert [path.name for path in tmp_path.iterdir()] == left
