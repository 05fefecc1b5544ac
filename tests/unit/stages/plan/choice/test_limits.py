"""Limits: which rows keep to them, how near the others come, in numbers and in a sentence."""

import numpy as np
import pytest

from dayzero.schema import Layout, Limits
from dayzero.stages.plan.choice.limits import bounds, excess, missed, stated, verdict, within

LAYOUTS = [Layout(tp=1), Layout(tp=2), Layout(tp=4)]
FIGURES = {"ttft_s": np.array([4.0, 2.0, 1.0]), "tpot_s": np.array([0.010, 0.012, 0.020]),
           "devices": np.array([1, 2, 4])}
ALL = np.ones(3, dtype=bool)


def test_no_limits_are_kept_by_all():
    assert within(Limits(), FIGURES).all() and bounds(Limits(), FIGURES, LAYOUTS, ALL) == ()


def test_excess_is_the_worst_ratio():
    limits = Limits(ttft_s=2.0, tpot_s=0.012)
    assert excess(limits, FIGURES).tolist() == pytest.approx([2.0, 1.0, 0.020 / 0.012])
    assert within(limits, FIGURES).tolist() == [False, True, False]
    assert stated(limits) == {"ttft_s": 2.0, "tpot_s": 0.012}


def test_a_limit_that_is_next_to_nothing():
    assert not within(Limits(ttft_s=1e-308), FIGURES).any() and np.isinf(excess(Limits(ttft_s=5e-324), FIGURES)).all()


def test_a_budget_of_cards():
    assert within(Limits(devices=2), FIGURES).tolist() == [True, True, False]


def test_a_limit_that_nothing_meets_names_the_nearest():
    found = bounds(Limits(tpot_s=0.008), FIGURES, LAYOUTS, np.array([False, True, True]))
    assert (found[0].met_by, found[0].nearest, found[0].layout) == (0, 0.012, Layout(tp=2))
    assert verdict(found) == "No layout that fits meets TPOT 8 ms: tp=2 is nearest with 12 ms, 50% over."


def test_limits_that_exclude_each_other():
    found = bounds(Limits(ttft_s=1.5, tpot_s=0.011), FIGURES, LAYOUTS, ALL)
    assert [one.met_by for one in found] == [1, 1]
    assert verdict(found).startswith("Each limit is met by some layout")
    row = {name: float(column[2]) for name, column in FIGURES.items()}
    assert missed(Limits(ttft_s=1.5, tpot_s=0.011), row) == "TPOT 20 ms, 82% over 11 ms"
    assert missed(Limits(ttft_s=1.5), row) == ""


def test_nothing_that_fits_is_near():
    assert bounds(Limits(devices=1), FIGURES, LAYOUTS, ~ALL)[0].nearest is None
