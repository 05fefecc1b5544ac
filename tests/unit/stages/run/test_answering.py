"""Texts of growing rows of tokens: whole characters, and never a part of what ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dayzero.stages.run.answering import Writing


class Bytes:
    """A tokenizer with one token for each byte."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


def _written(text: str, sizes: Sequence[int], stop: Sequence[str]) -> tuple[list[str], Writing]:
    data = list(text.encode())
    made: Any = Bytes()
    writing, pieces, at = Writing(lambda: made, stop), list[str](), 0
    for size in (*sizes, len(data)):
        if writing.stopped or at >= len(data):
            break
        pieces.append(writing.more(data[at:at + size], last=at + size >= len(data)))
        at += size
    return pieces, writing


@given(st.text(alphabet="abä€𝄞", max_size=12), st.lists(st.integers(1, 4), max_size=12),
       st.lists(st.text(alphabet="abä€", min_size=1, max_size=3), max_size=2))
def test_pieces_make_the_text_up_to_the_first_stop(text: str, sizes: list[int], stop: list[str]) -> None:
    pieces, writing = _written(text, sizes, stop)
    ends = [place for each in stop if (place := text.find(each)) >= 0]
    reached = [place + len(each) for each in stop if (place := text.find(each)) >= 0]
    if not ends:
        assert "".join(pieces) == writing.text == text and not writing.stopped
        assert bytes(writing.ids).decode() == text
        return
    # the one that is complete first ends it, at the first place where one begins by then
    seen = text[:min(reached)]
    wanted = min(place for each in stop if (place := seen.find(each)) >= 0)
    assert writing.stopped and "".join(pieces) == writing.text == text[:wanted]
    assert bytes(writing.ids).decode() == seen


def test_what_may_become_a_stop_is_held_back_until_it_is_none() -> None:
    made: Any = Bytes()
    writing = Writing(lambda: made, ["###"])
    assert writing.more(b"a#", last=False) == "a"
    assert writing.more(b"#", last=False) == ""
    assert writing.more(b"b", last=False) == "##b"
    assert writing.more(b"#", last=False) == ""
    assert writing.more([], last=True) == "#"


def test_ids_alone_need_no_tokenizer() -> None:
    writing = Writing(None)
    assert writing.more([5, 6], last=True) == "" and writing.ids == [5, 6]
