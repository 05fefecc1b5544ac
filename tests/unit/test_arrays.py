"""Numbers and arrays take the same way: an array gives what each of its numbers gives."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.arrays import ceiling, choose, each, floor, largest, logarithm, real, share, smallest

NUMBERS = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)


@given(NUMBERS, st.integers(1, 10**6))
def test_an_array_gives_what_each_number_gives(numbers, other):
    column = np.array(numbers)
    for function in (largest, smallest):
        assert function(column, other).tolist() == [function(one, other) for one in numbers]
    assert choose(column > other, column, -1).tolist() == [choose(one > other, one, -1) for one in numbers]
    assert ceiling(column / 7).tolist() == [ceiling(one / 7) for one in numbers]
    assert floor(column / 7).tolist() == [floor(one / 7) for one in numbers]
    assert logarithm(column) == pytest.approx([logarithm(one) for one in numbers])


@given(st.integers(0, 10**13), NUMBERS, st.integers(1, 10**6))
def test_shares_of_arrays_are_right_within_one(whole, parts, of):
    exact = [ceil(Fraction(whole * part, of)) for part in parts]
    assert [share(whole, part, of) for part in parts] == exact
    # products of these numbers are more than 64 bits hold
    assert share(whole, np.array(parts), of) == pytest.approx(exact, rel=4e-16, abs=1.0)


@given(st.integers(0, 10**7), st.integers(1, 10**3), st.integers(1, 10**3))
def test_whole_shares_of_arrays_are_exact(unit, part, of):
    assert share(unit * of, np.array([part]), of).tolist() == [unit * part]


def test_numbers_stay_whole_whatever_their_size():
    huge = 10**30
    assert share(huge, 2, 3) == -(-2 * huge // 3) and largest(huge, 1) == huge and smallest(huge, huge + 1) == huge
    assert real(huge) == huge and real(np.array([1, 2])).dtype == np.float64


def test_equal_numbers_are_asked_for_once():
    asked = []

    def squared(number):
        asked.append(number)
        return number**2

    assert each(np.array([3, 1, 3, 3]), squared).tolist() == [9, 1, 9, 9] and asked == [1, 3]
    assert each(4, squared) == 16
