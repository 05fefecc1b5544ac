from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.schema import Column, Layout, digest, from_json, to_json

INT64 = st.integers(-(2**62), 2**62)


@given(st.lists(INT64, max_size=50))
def test_column_survives_json(values: list[int]) -> None:
    column = Column(values)
    back = from_json(to_json(column), Column)
    assert back == column and list(back.values) == values


def test_column_is_compact() -> None:
    offsets = Column(range(8, 8 + 17_547_264 * 82_432, 17_547_264))  # K3's experts, one after the other
    assert len(offsets.pack()) < 10_000


@pytest.mark.parametrize("text", ["", "!!", "AAAA", "eJwDAAAAAAE"])
def test_damaged_column(text: str) -> None:
    with pytest.raises(ValueError, match="not a packed column"):
        Column.unpack(text)


def test_column_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Column([1, 2]).values[0] = 3


def test_digest_depends_on_content_alone() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest(Layout(tp=2)) == digest(Layout(tp=2)) != digest(Layout(tp=3))
