"""Every place is taken once, by members that are there; who stays keeps its place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.recovery.places import reseated, seated, smaller
from dayzero.schema import Layout

DEGREES = st.builds(Layout, tp=st.sampled_from([1, 2, 4]), pp=st.integers(1, 4), dp=st.integers(1, 2))


@given(DEGREES, st.data())
def test_spares_take_the_empty_places_only(layout: Layout, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, layout.world_size - 1)))
    spares = list(range(100, 100 + data.draw(st.integers(0, layout.world_size))))
    before = {rank: 10 + rank for rank in range(layout.world_size) if rank not in lost}
    made = seated(layout, before, spares)
    if len(spares) < len(lost):
        assert made is None
        return
    assert made is not None
    assert sorted(made) == list(range(layout.world_size))
    assert len(set(made.values())) == layout.world_size
    assert all(made[rank] == member for rank, member in before.items())


@given(DEGREES, DEGREES, st.data())
def test_with_fewer_ranks_everybody_has_one_place(old: Layout, new: Layout, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, old.world_size - 1))
    before = {rank: 10 + rank for rank in range(old.world_size) if rank != lost}
    spares = list(range(100, 100 + max(0, new.world_size - len(before))))
    made = reseated(new, old, before, spares)
    assert sorted(made) == list(range(new.world_size))
    assert len(set(made.values())) == new.world_size
    assert set(made.values()) <= {*before.values(), *spares}


def test_stages_stay_where_they_were() -> None:
    # of four stages the last one is lost; of two, the first goes to who had the first, the second to who had the third
    assert reseated(Layout(pp=2), Layout(pp=4), {0: 10, 1: 11, 2: 12}, []) == {0: 10, 1: 12}


def test_the_first_layout_that_can_be_filled() -> None:
    layouts = [Layout(tp=4), Layout(tp=2), Layout(pp=2), Layout()]
    assert smaller(layouts, 3) == Layout(tp=2)
    assert smaller(layouts, 1) == Layout()
    assert smaller(layouts[:2], 1) is None
