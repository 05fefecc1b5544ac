"""What a run does before it starts a rank."""

from __future__ import annotations

from pathlib import Path

from dayzero.stages.run import _remove_unfinished


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    for name in (".pp2.part", ".dp2.part", "dp2", "pp2-failed"):
        (tmp_path / name / "rank-0").mkdir(parents=True)
    _remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"dp2", "pp2-failed"}
    _remove_unfinished(tmp_path / "nothing")
