"""Where ranks stand, and which layouts are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.mesh import Place, refusal
from dayzero.schema import Layout


@pytest.mark.parametrize(("text", "word"), [
    ("tp=2,pp=2", "combine"), ("tp=2,cp=2", "context"), ("tp=4,attention_tp=2", "attention"), ("dp=2,ep=2", "experts"),
    ("tp=4,ep=2", "experts"),
])
def test_refused(text: str, word: str) -> None:
    assert word in refusal(Layout.parse(text))


@pytest.mark.parametrize("text", ["", "tp=2", "pp=3", "dp=4", "tp=2,ep=2", "tp=2,dp=2", "pp=2,dp=2", "tp=2,ep=2,dp=2"])
def test_tried(text: str) -> None:
    assert refusal(Layout.parse(text)) == ""


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_places_are_all_different_and_tp_is_innermost(tp: int, pp: int, dp: int) -> None:
    layout = Layout(tp=tp, pp=pp, dp=dp)
    places = [Place(layout, rank) for rank in range(layout.world_size)]
    assert len({(place.replica, place.stage, place.inner % tp) for place in places}) == layout.world_size
    assert {place.replica for place in places} == set(range(dp))
    assert {place.stage for place in places} == set(range(pp))
    assert sum(place.first_of_tp for place in places) == pp * dp
    for place in places:
        group = places[place.rank - place.rank % tp:][:tp]
        assert {(each.replica, each.stage) for each in group} == {(place.replica, place.stage)}
