"""Somebody else's text on one printable line, also in errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import NotPossible, ReleaseError
from dayzero.text import LINE, one_line, printable


@given(st.text(st.characters()))
def test_a_line_is_one_short_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable() and len(line) <= LINE


def test_escapes() -> None:
    assert printable("a\x1b[31m\nb\x9bc\u202e\udcff") == "a\\x1b[31m\\nb\\x9bc\\u202e\\udcff"
    assert printable("a\nb\t", keep="\n\t") == "a\nb\t"
    assert printable("Größe 大小") == "Größe 大小"
    assert one_line("x" * 5000 + "end", 100).endswith("xend") and " ... " in one_line("x" * 5000)


def test_errors_are_two_lines_whatever_a_release_calls_its_tensors() -> None:
    with pytest.raises(ReleaseError, match=r"x\\nerror: y") as told:
        raise ReleaseError("x\nerror: y\x1b[31m", "z" * 5000)
    assert told.value.message == "x\\nerror: y\\x1b[31m" and len(told.value.hint) <= LINE
    assert NotPossible("a\rb", "\ud800").reason == "a\\rb" and NotPossible("a", "\ud800").hint == "\\ud800"
