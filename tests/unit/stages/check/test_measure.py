"""Distances between values."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import StoreError
from dayzero.schema import Check, from_json, to_json
from dayzero.stages.check.measure import FAR, distance, judged, margin_error


def test_figures_by_hand() -> None:
    """r = (3, 4), x = (3, 5): ||x - r|| / ||r|| = 1 / 5, cosine = 29 / (5 sqrt(34))."""
    found = distance([(np.array([3.0]), np.array([3.0])), (np.array([5.0]), np.array([4.0]))])
    assert (found.relative_l2, found.max_abs, found.largest) == (pytest.approx(0.2), 1.0, 4.0)
    assert found.cosine == pytest.approx(29 / (5 * 34**0.5))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_equal_values_are_at_no_distance(values: list[float]) -> None:
    array = np.array(values)
    assert distance([(array, array)]).relative_l2 == 0.0


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_far_and_fit_into_json(odd: float) -> None:
    found = distance([(np.array([odd, 1.0]), np.array([1.0, 1.0]))])
    assert found.relative_l2 > 1e300 and found.max_abs > 1e300 and found.cosine == 0.0
    json.dumps([found.relative_l2, found.max_abs], allow_nan=False)


def test_values_against_nothing_are_far() -> None:
    assert distance([(np.ones(2), np.zeros(2))]).relative_l2 > 1e300


def test_shapes_have_to_agree() -> None:
    with pytest.raises(StoreError, match=r"layer was dumped in shape \[2\]; the reference has \[3\]"):
        distance([(np.ones(2), np.ones(3))], "layer")


def test_nothing_compared_is_not_the_same() -> None:
    assert distance([]).relative_l2 == FAR == distance([(np.ones((0, 4)), np.ones((0, 4)))]).relative_l2


@pytest.mark.parametrize(("observed", "tolerance", "passed"), [
    (1.0, 1.0, True), (1.1, 1.0, False), (np.nan, 1.0, False), (np.inf, np.inf, False), (0.0, np.nan, False)])
def test_a_check_of_no_number_fails_and_fits_into_json(observed: float, tolerance: float, passed: bool) -> None:
    found = judged("x", observed, tolerance, "s")
    assert found.passed == passed
    assert from_json(to_json(found), Check) == found


def test_margins_of_no_numbers_are_no_number() -> None:
    assert np.isnan(margin_error(np.full((1, 3), np.nan), np.ones((1, 3))))


def test_margin_error() -> None:
    """The reference's best two are columns 2 and 1, 3 apart; ours are 1 apart; the second rows are the same."""
    reference = np.array([[0.0, 2.0, 5.0], [1.0, 9.0, 2.0]], np.float32)
    ours = np.array([[7.0, 3.0, 4.0], [1.0, 9.0, 2.0]], np.float32)
    assert margin_error(ours, reference) == 2.0
    assert margin_error(reference, reference) == 0.0
