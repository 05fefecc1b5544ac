"""How each verb ends when a stage that it needs fails, cannot run, or finds that the request is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dayzero.cli import main
from dayzero.errors import NotPossible, StageError

H200 = '[cluster]\ndevice = "h200"\ndevices_per_node = 1\n'
VERBS = ["preflight", "plan", "run", "check", "emit", "report", "adapt"]


@pytest.fixture
def ends(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """ends(verb, stage, error) -> (exit code, error lines, standard output) with a stage that raises."""
    (tmp_path / "one.toml").write_text(H200)
    card = root / "examples/cards/smollm2-135m.toml"

    def run(verb: str, stage: str, error: Exception) -> tuple[int, list[str], str]:
        def broken(*arguments: object, **options: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(f"dayzero.stages.{stage}.{stage}", broken)
            patch.setattr(sys, "argv", ["dayzero", verb, str(card), *(["-t", "one.toml"] if verb != "trace" else [])])
            patch.chdir(tmp_path)
            patch.setattr(signal, "signal", lambda *arguments: None)  # keep pytest's
            with pytest.raises(SystemExit) as end:
                main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), [line for line in err.splitlines() if not line.startswith("[")], out

    return run


@pytest.mark.parametrize(("stage", "verbs"), [
    ("preflight", {"preflight": 1, "run": 1, "check": 1, "plan": 0, "emit": 0, "report": 0, "adapt": 1}),
    ("plan", {"preflight": 0, "run": 1, "check": 1, "plan": 1, "emit": 1, "report": 0, "adapt": 1}),
    ("run", {"preflight": 0, "run": 1, "check": 1, "plan": 0, "emit": 0, "report": 0, "adapt": 1}),
    ("emit", {"emit": 1, "report": 0, "adapt": 1}),
    ("report", {"report": 1, "adapt": 1}),
])
@pytest.mark.slow
def test_a_stage_that_fails(ends: Any, stage: str, verbs: dict[str, int]) -> None:
    """A verb whose result it prevents ends with its error and exit code 1; the others do not care."""
    for verb, expected in verbs.items():
        code, lines, out = ends(verb, stage, StageError("rank 0 died\x1b[2J", "see the log", "last\nwords"))
        assert code == expected, (verb, lines)
        if expected and verb != "adapt":
            assert lines[-4:] == ["error: rank 0 died\\x1b[2J", "hint: see the log", "last", "words"] and not out
        elif verb != "adapt":
            assert out and not lines


def test_a_stage_that_is_not_possible(ends: Any) -> None:
    for verb in VERBS:
        code, lines, out = ends(verb, "plan", NotPossible("no room", "make some"))
        if verb in ("plan", "run", "check", "emit"):
            assert (code, lines, out) == (2, ["error: not possible here: no room", "hint: make some"], "")
        else:
            assert code == 0


def test_verbs_without_a_run_directory(ends: Any) -> None:
    for stage, verb in (("trace", "trace"), ("read", "trace"), ("read", "read")):
        code, lines, _ = ends(verb, stage, StageError("it died", "look"))
        assert (code, lines) == ((1, ["error: it died", "hint: look"]) if verb != "read" else (code, lines))


def test_the_system_refuses(ends: Any) -> None:
    code, lines, _ = ends("plan", "plan", PermissionError(13, "Permission denied", "/some\nwhere"))
    assert code == 2 and lines[0] == "error: /some\\nwhere: Permission denied" and lines[1].startswith("hint: ")


@pytest.mark.parametrize(("arguments", "hint"), [
    (("score", "a.csv", "--releases", ".", "--out", "b.csv", "--kind", "foo"), "see dayzero score --help"),
    (("nothing",), "see dayzero --help")])
def test_the_module_runs_the_command(arguments: tuple[str, ...], hint: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "dayzero", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.splitlines()[1:] == [f"hint: {hint}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: int, tmp_path: Path) -> None:
    code = ("import sys, time; from dayzero.cli import main, stages, app\n"
            "@app.command()\n"
            "def wait():\n"
            "    try:\n"
            "        print('ready', flush=True); time.sleep(60)\n"
            "    finally:\n"
            "        open('cleaned', 'w').close()\n"
            "sys.argv = ['dayzero', 'wait']; main()")
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        error = process.communicate(timeout=30)[1].decode().splitlines()
    assert process.returncode == 128 + number and len(error) == 2 and (tmp_path / "cleaned").exists()
