"""Interval arithmetic against counting nanoseconds one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.timeline.shares import intersection, length, shares, together, union, without

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def columns(spans: list[tuple[int, int]]) -> np.ndarray:
    return np.array([(start, start + long) for start, long in spans], np.int64).reshape(-1, 2)


def moments(spans: np.ndarray) -> set[int]:
    return {moment for start, end in spans.tolist() for moment in range(start, end)}


@given(SPANS, SPANS)
@settings(max_examples=300, deadline=None)
def test_unions_are_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = union([columns(one)]), union([columns(other)])
    assert moments(first) == moments(columns(one))
    assert length(first) == len(moments(columns(one)))
    assert moments(union([columns(one), columns(other)])) == moments(first) | moments(second)
    assert moments(intersection(first, second)) == moments(first) & moments(second)
    assert moments(without(first, second)) == moments(first) - moments(second)


def test_a_load_is_hidden_under_computing_only() -> None:
    found = shares({
        ("compute", "main"): columns([(0, 10), (20, 10)]),
        ("wait", "main"): columns([(25, 5)]),  # inside of the second computation: the thread stands still
        ("load", "loads"): columns([(5, 20)]),  # 5..10 and 20..25 are hidden
        ("load", "more loads"): columns([(6, 2)]),  # at the same time as the first: the same seconds
        ("offload", "main"): columns([(2, 2)]),  # on the computing thread itself: not hidden
    }, {"load": 7, "offload": 3})
    assert [(one.category, one.seconds, one.hidden_s, one.nbytes) for one in found] == [
        ("load", 20e-9, 10e-9, 7), ("offload", 2e-9, 0.0, 3)]
    assert found[0].share == 0.5


def test_ranks_add_up() -> None:
    one = shares({("compute", "a"): columns([(0, 10)]), ("load", "b"): columns([(0, 10)])}, {"load": 5})
    two = shares({("compute", "a"): columns([(0, 10)]), ("load", "b"): columns([(10, 30)])}, {"load": 1})
    (both,) = together([one, two])
    assert (both.seconds, both.hidden_s, both.nbytes, both.share) == (40e-9, 10e-9, 6, 0.25)
