"""`dayzero card` goes both ways, and writes nothing over what it reads."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dayzero.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(arguments) -> (exit code, standard output, standard error) of `dayzero card`."""

    def card(*arguments: Path | str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dayzero", "card", *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # keep pytest's
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return card


def test_there_and_back(run: Run, root: Path, tmp_path: Path) -> None:
    release, card = tmp_path / "release", tmp_path / "card.toml"
    assert run(root / "examples/cards/smollm2-135m.toml", release)[0] == 0
    code, out, _ = run(release, card)
    assert (code, out) == (0, f"{card}\n")
    assert card.read_text().endswith('[[blocks]]\nuse = "standard"\n')
    code, printed, _ = run(release)
    assert (code, printed) == (0, card.read_text())


def test_requests_that_make_no_sense(run: Run, root: Path, tmp_path: Path) -> None:
    card, release = root / "examples/cards/smollm2-135m.toml", tmp_path / "release"
    assert run(card, release)[0] == 0
    for arguments in ((card,), (card, release), (card, tmp_path / "new", "--revision", "main"),
                      (release, release / "card.toml"), (release, tmp_path / "none" / "card.toml"),
                      (release, tmp_path / "new", "--against", card), (release, "--json"),
                      (release, "--trust-remote-code")):
        code, out, err = run(*arguments)
        assert code == 2 and not out and "error: " in err and "hint: " in err
    assert not (tmp_path / "new").exists() and not (release / "card.toml").exists()


@pytest.mark.slow
def test_against(run: Run, root: Path) -> None:
    pytest.importorskip("transformers")
    card = root / "examples/cards/smollm2-135m.toml"
    code, out, _ = run(card, "--against", card, "--json", "--tokens", "32")
    found = json.loads(out)
    products = [row for row in found["rows"] if row["op"] in ("linear", "attention", "norm")]
    assert code == 0 and len(products) == 10
    assert all(row["code_flops"] == row["card_flops"] > 0 for row in products)
