"""What reaches a terminal is printable and short; closed, full and broken streams end as the command line says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from dayzero.cli.console import SafeConsole
from dayzero.cli.options import prompts_of
from dayzero.cli.progress import drawn
from dayzero.cli.streams import refuse_undecodable, tell
from dayzero.errors import UsageError
from dayzero.text import LINE

DAYZERO = f"{sys.executable} -m dayzero.cli"


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, timeout=60)


def test_arguments_are_text() -> None:
    refuse_undecodable(["Größe", ""])
    with pytest.raises(UsageError, match="not text in utf-8"):
        refuse_undecodable([os.fsdecode(b"\xff")])


def test_a_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", title="t\x1b]0;title\x07")
    table.add_row("evil\x1b[2J\x9b")
    console = SafeConsole()
    console.print(table)
    with drawn(SafeConsole(stderr=True)) as progress:
        progress.update("reading \x1b[31m:smile:[red]x\ny")
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\x9b" not in out and "\\x1b[2J" in out
    assert err.count("\n") == 1 and ":smile:[red]x\\ny" in err


@pytest.mark.parametrize(("command", "code"), [
    (f"{DAYZERO} devices | true; exit ${{PIPESTATUS[0]}}", 141),
    (f"{DAYZERO} devices --json | true; exit ${{PIPESTATUS[0]}}", 141),
    (f"{DAYZERO} devices >&- 2>&- <&-", 0),
    (f"{DAYZERO} devices >/dev/null 2>/dev/full", 0),
    (f"{DAYZERO} read nowhere 2>&-", 2),
    (f"{DAYZERO} read nowhere 2>/dev/full", 2),
    (f"PYTHONIOENCODING=ascii {DAYZERO} devices", 0),
])
def test_streams_that_take_nothing(command: str, code: int, tmp_path: Path) -> None:
    done = shell(command, tmp_path)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("command", [
    f"{DAYZERO} devices >/dev/full", f"{DAYZERO} --version >/dev/full", f"{DAYZERO} read $'a\\n\\e[31mb\\nc'",
    f"{DAYZERO} read $'\\xff'", f"{DAYZERO} run x --prompt $'\\xff'", f"{DAYZERO} run x --prompts /dev/zero",
    f"{DAYZERO} card /dev/zero out", f"{DAYZERO} import-gguf <(sleep 0) out", f"{DAYZERO} card <(sleep 0) out",
    f"{DAYZERO} read {'x' * 5000}", f"{DAYZERO} $'re\\nad'",
])  # fmt: skip
def test_two_lines_and_nothing_else(command: str, tmp_path: Path) -> None:
    done = shell(command, tmp_path)
    error, hint = (line for line in done.stderr.decode().splitlines() if not line.startswith("["))  # progress
    assert done.returncode == 2 and error.startswith("error: ") and hint.startswith("hint: ")
    assert error.isprintable() and len(error) < LINE + 10
    assert not list(tmp_path.iterdir())


def test_a_log_is_below_the_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell(("what", "what to do; its last lines are below"), "one\n\x1b[31mtwo")
    assert capsys.readouterr().err.splitlines() == [
        "error: what", "hint: what to do; its last lines are below", "one", "\\x1b[31mtwo"]


def test_a_file_of_prompts_is_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    assert prompts_of(["zero"], tmp_path / "prompts") == ("zero", "one", "two")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"\xff")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "latin"):
        with pytest.raises(UsageError, match="cannot read the prompts"):
            prompts_of(None, path)
