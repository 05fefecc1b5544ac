"""Many layouts at once are what each of them is alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dayzero.placement import layouts
from dayzero.placement.many import COLUMNS, Layouts, shared
from dayzero.schema import Layout

SOME = [Layout(tp=8, pp=2, ep=4, dp=2), Layout(tp=8, attention_tp=2, cp=2), Layout(dp=4, ep=4), Layout(tp=8, ep=2)]


def test_columns_are_those_of_each_layout():
    made = Layouts.of(SOME)
    assert list(made) == SOME and len(made) == 4
    for name in (*COLUMNS, "attention_degree", "expert_tp", "world_size"):
        assert getattr(made, name).tolist() == [getattr(one, name) for one in SOME]
    assert list(made.take([2, 0])) == [SOME[2], SOME[0]]
    assert list(made.take(made.tp == 8)) == [one for one in SOME if one.tp == 8]
    assert len(Layouts.of([])) == 0


@given(st.sampled_from([12, 16, 64]), st.booleans())
def test_a_function_gives_the_same_as_for_each_alone(world, has_experts):
    """Also one that reads other degrees on other ways through it."""
    def figure(layout):
        if layout.attention_degree > 4:
            return layout.pp
        return layout.dp * layout.ep if layout.ep > layout.tp else -layout.tp

    some = list(layouts(world, has_experts))
    found = shared(figure, Layouts.of(some))
    assert found.column(float).tolist() == [figure(one) for one in some]


def test_it_is_called_once_for_layouts_that_it_cannot_tell_apart():
    calls = []

    def figure(layout):
        calls.append(layout.tp)
        return layout.tp

    made = Layouts.of([Layout(tp=2), Layout(tp=2, pp=4), Layout(tp=4), Layout(tp=2, dp=8)])
    found = shared(figure, made)
    assert calls == [2, 4] and found.which.tolist() == [0, 0, 1, 0]
    texts = shared(lambda layout: layout.text, made)
    assert [texts.values[which] for which in texts.which] == ["tp=2", "tp=2 pp=4", "tp=4", "tp=2 dp=8"]


def test_nothing_is_asked_of_no_layouts():
    assert shared(lambda layout: layout.tp, Layouts.of([])).column(float).size == 0
    assert np.array_equal(Layouts.of([]).world_size, [])
