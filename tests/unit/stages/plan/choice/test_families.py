"""Rejected layouts by reason, and the degrees that alone decide."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dayzero.placement import layouts
from dayzero.schema import Layout, Rejected
from dayzero.stages.plan.choice.families import families, lacking

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


def test_what_does_not_fit_is_told_by_what_takes_most():
    gib = 2**30
    some = [Layout(dp=4), Layout(tp=2, dp=2), Layout(tp=4), Layout(pp=4)]
    causes = {"weights": np.array([40, 20, 10, 10]) * gib, "kv_cache": np.array([1, 1, 30, 1]) * gib}
    weights, cache = lacking(some, causes, np.array([False, False, False, True]), 20 * gib)
    assert (weights.layouts, weights.example, weights.rule) == (2, Layout(tp=2, dp=2), "memory-total")
    assert weights.message == "1.00 GiB to 21.00 GiB more than the 20.00 GiB of a device, most of it weights"
    assert cache.degrees == {"tp": 4} and cache.message.startswith("20.00 GiB more than")
    assert lacking(some, causes, np.ones(4, dtype=bool), 100 * gib) == ()
