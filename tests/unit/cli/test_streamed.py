"""What is told beside texts that are written as they come."""

from __future__ import annotations

import pytest

from dayzero.cli.streamed import _Until
from dayzero.progress import Progress


class Heard(Progress):
    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_notes_do_not_come_into_a_text_and_are_told_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    one = _Until(heard)
    one.note("before")
    one.over = True
    with one.kept():
        one.note("rank 1 was ended by SIGKILL")
    assert heard.notes == ["before"] and capsys.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt), one.kept():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\nrank 1 was ended by SIGKILL\n"
