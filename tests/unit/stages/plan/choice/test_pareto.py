"""The front: nothing on it is beaten, everything else is beaten or equal to something on it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dayzero.stages.plan.choice.pareto import best_for, front, loads, thinned

TABLES = st.integers(1, 40).flatmap(lambda rows: st.integers(1, 4).flatmap(
    lambda width: arrays(np.float64, (rows, width), elements=st.integers(0, 6).map(float))))


def beats(one, other):
    return (one <= other).all() and (one < other).any()


@given(TABLES)
def test_no_beaten_row_stays_and_every_dropped_one_is_beaten_or_equal(table):
    kept = front(*table.T)
    assert kept.any()
    for row in table[kept]:
        assert not any(beats(other, row) for other in table)
    for row in table[~kept]:
        assert any(beats(other, row) or (other == row).all() for other in table[kept])
    assert len(np.unique(table[kept], axis=0)) == kept.sum()  # equal rows come once


@given(TABLES, st.randoms())
def test_the_order_of_rows_does_not_matter(table, random):
    order = list(range(len(table)))
    random.shuffle(order)
    there = sorted(map(tuple, table[front(*table.T)]))
    assert sorted(map(tuple, table[order][front(*table[order].T)])) == there


def test_a_front_by_hand():
    latency, cost = np.array([1.0, 2.0, 3.0, 2.0, 4.0]), np.array([9.0, 5.0, 5.0, 5.0, 1.0])
    assert front(latency, cost).tolist() == [True, True, False, False, True]


def test_ten_thousand_rows_take_a_moment():
    values = np.random.default_rng(0).random((10_000, 2))
    assert 1 <= front(*values.T).sum() < 100


def test_what_a_row_is_best_for():
    throughput = np.array([1.0, 2.0, 3.0])
    found = best_for(throughput, {"tpot": np.array([1.0, 3.0, 2.0]), "ttft": np.array([2.0, 1.0, 3.0])})
    assert found == [("tpot",), ("ttft",), ("tpot", "ttft")]


def test_loads_are_powers_of_two_and_what_is_asked_for():
    assert loads(10, 3) == [1, 2, 3, 4, 8]
    assert loads(0, 5) == [5]
    many = loads(2**40, 7)
    assert len(many) <= 18 and many[0] == 1 and many[-1] == 2**40 and 7 in many


def test_thinned_keeps_both_ends():
    assert thinned([1, 2, 3], 5) == [1, 2, 3]
    found = thinned(list(range(100)), 10)
    assert len(found) == 10 and found[0] == 0 and found[-1] == 99 and found == sorted(found)
