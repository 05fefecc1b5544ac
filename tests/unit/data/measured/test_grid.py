"""Interpolation: exact on points, between neighbours, rising, positive, honest about what was not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.data.measured.grid import Slice, distinct

TOKENS = np.array([1.0, 2, 4, 8, 16, 64])
OUTER = np.array([128.0, 256, 1024])


def sliced(times: np.ndarray[Any, Any], keep: np.ndarray[Any, Any] | None = None) -> Slice:
    """A slice of times [outer, tokens]; `keep`: which of them were measured."""
    outer, tokens = np.meshgrid(OUTER, TOKENS, indexing="ij")
    kept = np.ones(times.shape, dtype=bool) if keep is None else keep
    return Slice.of({}, {"outer": outer[kept], "tokens": tokens[kept]}, times[kept], ["tokens"])


def straight() -> np.ndarray[Any, Any]:
    """1 us for each outer and token."""
    return 1e-6 * np.outer(OUTER, TOKENS)


def test_points_are_exact() -> None:
    one = sliced(straight())
    found = one.read({"outer": OUTER[:, None], "tokens": TOKENS})
    assert found.seconds.reshape(3, 6) == pytest.approx(straight(), rel=1e-12)
    assert found.on_point.all() and not found.filled.any() and (found.away == 0).all()


def test_a_power_law_is_found_between_points() -> None:
    found = sliced(straight()).read({"outer": np.array([300.0]), "tokens": np.array([11.0])})
    assert found.seconds == pytest.approx([300 * 11e-6])
    assert not found.on_point[0] and found.away[0] == 0


def test_outside_is_the_edge_and_says_how_far() -> None:
    found = sliced(straight()).read({"outer": np.array([1024.0]), "tokens": np.array([256.0])})
    assert found.seconds == pytest.approx([1024 * 64e-6])
    assert found.away == pytest.approx([2.0])  # doublings from 64 to 256
    assert found.at["tokens"] == [64.0]
    assert not found.on_point[0]
    assert found.spread[0] > 0.2


def test_what_was_not_measured_is_filled_along_tokens_and_told() -> None:
    keep = np.ones((3, 6), dtype=bool)
    keep[2, 4:] = False  # too large to run
    one = sliced(straight(), keep)
    found = one.read({"outer": np.array([1024.0, 1024.0]), "tokens": np.array([8.0, 64.0])})
    assert list(found.filled) == [False, True]
    assert found.seconds == pytest.approx([1024 * 8e-6, 1024 * 64e-6])  # the last two points go on


def test_a_hiccup_is_lowered_to_the_next_larger_batch() -> None:
    times = straight()
    times[1, 2] = 1.0  # 4 tokens: a second
    found = sliced(times).read({"outer": np.array([256.0]), "tokens": np.array([4.0])})
    assert found.seconds == pytest.approx([256 * 8e-6])


def test_shapes_take_the_nearest() -> None:
    heads, tokens = np.meshgrid([4.0, 32.0], TOKENS, indexing="ij")
    one = Slice.of({"heads": heads.ravel()}, {"tokens": tokens.ravel()}, (heads * tokens).ravel() * 1e-6, ["tokens"])
    found = one.read({"heads": np.array([5.0, 32.0, 64.0]), "tokens": np.array([4.0, 4.0, 4.0])})
    assert list(found.at["heads"]) == [4.0, 32.0, 32.0]
    assert found.away == pytest.approx([np.log2(5 / 4), 0.0, 1.0])
    assert found.seconds == pytest.approx([16e-6, 128e-6, 128e-6])


def test_an_axis_of_the_shape_that_is_not_asked_for_matches_anything() -> None:
    one = Slice.of({"heads": np.array([4.0]), "rank": np.array([512.0])}, {"tokens": np.array([8.0])},
                   np.array([1e-5]), [])
    assert one.read({"heads": np.array([4.0]), "tokens": np.array([8.0])}).away == [0.0]


def test_times_have_to_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Slice.of({}, {"tokens": np.array([1.0, 2.0])}, np.array([1e-6, 0.0]), ["tokens"])


def test_the_error_of_left_out_points_is_in_the_spread() -> None:
    bent = straight() * np.array([1, 3, 1, 3, 1, 3])
    bent = np.maximum.accumulate(bent, axis=1)
    rough, smooth = sliced(bent), sliced(straight())
    query = {"outer": np.array([256.0]), "tokens": np.array([11.0])}
    assert rough.left_out[1] > 0.1 > smooth.left_out[1]
    assert rough.read(query).spread[0] > smooth.read(query).spread[0] >= 0.02


TIMES = st.lists(st.floats(1e-7, 10.0), min_size=18, max_size=18)
MEASURED = st.lists(st.booleans(), min_size=18, max_size=18).filter(any)
LENGTH = st.floats(0.5, 500.0)


@settings(deadline=None, max_examples=150)
@given(TIMES, MEASURED, st.lists(LENGTH, min_size=2, max_size=2), st.floats(64, 4096))
def test_any_table_rises_with_tokens_and_is_positive(times: list[float], measured: list[bool], tokens: list[float],
                                                     outer: float) -> None:
    keep = np.array(measured).reshape(3, 6)
    one = sliced(np.array(times).reshape(3, 6), keep)
    found = one.read({"outer": np.full(2, outer), "tokens": np.sort(tokens)})
    assert np.isfinite(found.seconds).all() and (found.seconds > 0).all() and (found.spread > 0).all()
    assert found.seconds[0] <= found.seconds[1] * (1 + 1e-9)


@settings(deadline=None, max_examples=150)
@given(TIMES, st.floats(1, 64), st.floats(128, 1024))
def test_any_value_lies_between_its_neighbours(times: list[float], tokens: float, outer: float) -> None:
    one = sliced(np.sort(np.array(times).reshape(3, 6), axis=1))
    found = one.read({"outer": np.array([outer]), "tokens": np.array([tokens])})
    i = min(int(np.searchsorted(OUTER, outer, side="right")) - 1, 1)
    j = min(int(np.searchsorted(TOKENS, tokens, side="right")) - 1, 4)
    corners = np.exp(one.logs[0, i:i + 2, j:j + 2])
    assert corners.min() * (1 - 1e-9) <= found.seconds[0] <= corners.max() * (1 + 1e-9)


@settings(deadline=None, max_examples=100)
@given(TIMES)
def test_a_rising_table_is_exact_on_its_points(times: list[float]) -> None:
    rising = np.sort(np.array(times).reshape(3, 6), axis=1)
    found = sliced(rising).read({"outer": OUTER[:, None], "tokens": TOKENS})
    assert found.seconds.reshape(3, 6) == pytest.approx(rising, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(1e-7, 10.0), min_size=36, max_size=36), st.lists(st.booleans(), min_size=36, max_size=36))
def test_two_rising_axes(times: list[float], measured: list[bool]) -> None:
    keep = np.array(measured).reshape(6, 6)
    keep[0, 0] = True
    sequences, tokens = np.meshgrid(TOKENS, TOKENS, indexing="ij")
    table = np.array(times).reshape(6, 6)
    one = Slice.of({}, {"sequences": sequences[keep], "tokens": tokens[keep]}, table[keep], ["sequences", "tokens"])
    assert (np.diff(one.logs[0], axis=0) >= -1e-12).all() and (np.diff(one.logs[0], axis=1) >= -1e-12).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([1.0, 3.0])), min_size=1, max_size=30))
def test_distinct_rows(rows: list[tuple[float, float]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    first, which = distinct(columns)
    assert len(first) == len(set(rows))
    assert [rows[first[i]] for i in which] == rows


def test_what_is_filled_in_is_less_certain() -> None:
    bent = np.maximum.accumulate(straight() * np.array([1, 3, 1, 3, 1, 3]), axis=1)
    keep = np.ones((3, 6), dtype=bool)
    keep[2, 5] = False
    found = sliced(bent, keep).read({"outer": np.array([1024.0, 1024.0]), "tokens": np.array([16.0, 64.0])})
    assert found.spread[1] > found.spread[0] + 0.05
