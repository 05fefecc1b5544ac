"""Rejected layouts by reason, and the degrees that alone decide."""

from hypothesis import given
from hypothesis import strategies as st

from dayzero.placement import layouts
from dayzero.schema import Layout, Rejected
from dayzero.stages.plan.families import families

ALL = list(layouts(16, True))


def refused(chosen, rule="r", message="m"):
    return [Rejected(layout=layout, rule=rule, message=message) for layout in chosen]


def test_one_degree_decides():
    found = families(refused([one for one in ALL if one.tp == 8]), ALL)
    assert found[0].degrees == {"tp": 8} and found[0].text == "tp=8" and found[0].layouts > 3


def test_two_degrees_decide():
    chosen = [one for one in ALL if one.tp == 4 and one.ep == 2]
    assert families(refused(chosen), ALL)[0].degrees == {"tp": 4, "ep": 2}


def test_no_degree_decides():
    chosen = [one for one in ALL if one.tp // one.ep == 2]  # the ways an expert is cut
    found = families(refused(chosen), ALL)[0]
    assert found.degrees == {} and found.text == found.example.text and found.example in chosen


def test_the_largest_family_comes_first_and_a_layout_may_be_in_several():
    found = families([*refused([Layout(pp=16)], "stages"), *refused([one for one in ALL if one.pp == 16], "other"),
                      *refused([one for one in ALL if one.tp == 8], "heads")], ALL)
    assert [one.rule for one in found] == ["heads", "stages", "other"]
    assert sum(one.layouts for one in found) == 2 + sum(one.tp == 8 for one in ALL)


@given(st.sets(st.sampled_from(ALL), min_size=1))
def test_whatever_decides_is_true_of_all_and_only_of_them(chosen):
    found = families(refused(chosen), ALL)[0]
    assert found.layouts == len(chosen)
    if found.degrees:
        alike = {one for one in ALL if all(
            getattr(one, name) == value or (name == "attention_tp" and one.attention_degree == value)
            for name, value in found.degrees.items())}
        assert alike == chosen
