"""Divisors, as layouts are made of them."""

from hypothesis import given
from hypothesis import strategies as st

from dayzero.placement.layouts import divisors


@given(st.integers(1, 3000), st.none() | st.integers(1, 100))
def test_divisors_are_those_that_leave_nothing(number, most):
    limit = number if most is None else min(number, most)
    assert divisors(number, most) == [degree for degree in range(1, limit + 1) if number % degree == 0]


def test_a_large_number_takes_no_time():
    assert len(divisors(10**12)) == 169
