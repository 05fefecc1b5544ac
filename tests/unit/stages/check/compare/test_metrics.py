"""Distances of aligned values, against sums in double precision over all values at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.floats import cast
from dayzero.stages.check.compare.logits import choices, likeliest
from dayzero.stages.check.compare.metrics import Tally, coarser, ulps
from dayzero.stages.check.measure import FAR


def _distance(x: np.ndarray, r: np.ndarray, dtype: str = "F32", step: int = 7):
    tally = Tally(dtype, x.shape[1])
    for start in range(0, len(x), step):
        tally.add(x[start : start + step], r[start : start + step])
    return tally.distance()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 40), width=st.integers(1, 30),
       power=st.sampled_from([-40, -20, 0, 15]), noise=st.sampled_from([0.0, 1e-6, 1e-2, 3.0]))
def test_a_pass_in_chunks_is_the_whole_in_double_precision(seed: int, rows: int, width: int, power: int, noise: float
                                                           ) -> None:
    rng = np.random.default_rng(seed)
    r = (rng.standard_normal((rows, width)) * 10.0**power).astype(np.float32)
    x = (r * (1 + noise * rng.standard_normal(r.shape))).astype(np.float32)
    wide_x, wide_r = x.astype(np.float64), r.astype(np.float64)
    found, gap, size = _distance(x, r), wide_x - wide_r, np.linalg.norm(wide_r)
    if not size:
        return
    assert found.relative_l2 == pytest.approx(np.linalg.norm(gap) / size, rel=1e-3, abs=1e-12)
    assert found.max_abs == pytest.approx(np.abs(gap).max(), rel=1e-6)
    assert found.scale == pytest.approx(abs((gap * wide_r).sum()) / size**2, rel=1e-2, abs=1e-8)
    squares = (wide_r**2).sum(axis=1)
    rows_apart = np.sqrt((gap**2).sum(axis=1) / np.maximum(squares, squares.mean() / 100))
    assert found.row == pytest.approx(rows_apart.max(), rel=1e-3, abs=1e-12)
    assert found.typical == pytest.approx(np.median(rows_apart), rel=1e-3, abs=1e-12)
    assert found.rows == rows and found.values == x.size


def test_what_is_no_number_in_one_only_is_infinitely_far() -> None:
    r = np.ones((4, 3), np.float32)
    x = r.copy()
    x[2, 1] = np.nan
    assert _distance(x, r).lost == 1 and _distance(x, r).relative_l2 == FAR
    r[2, 1] = np.nan
    assert (_distance(x, r).lost, _distance(x, r).both, _distance(x, r).relative_l2) == (0, 1, 0.0)
    x[0, 0], r[0, 0] = -np.inf, np.inf
    assert _distance(x, r).lost == 1


def test_large_and_small_values_do_not_leave_single_precision() -> None:
    r = np.full((2, 2), 3e38, np.float32)
    assert _distance(r * np.float32(0.5), r).relative_l2 == pytest.approx(0.5)
    r = np.full((2, 2), 1e-30, np.float32)
    assert _distance(r * np.float32(1.5), r).relative_l2 == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("dtype", "step"), [("BF16", 2.0**-7), ("F16", 2.0**-10), ("F32", 2.0**-23)])
def test_ulps_count_the_numbers_in_between(dtype: str, step: float) -> None:
    r = np.array([1.0, 1.0, -1.0, 0.0, 2.0], np.float32)
    x = np.array([1 + step, 1 + 3 * step, -1 - 2 * step, -0.0, 2 - step], np.float32)
    assert ulps(x, r, dtype).tolist() == [1, 3, 2, 0, 1]
    far = ulps(np.array([-1e-3], np.float32), np.array([1e-3], np.float32), "BF16")
    assert far[0] == 2 * ulps(np.array([0.0], np.float32), np.array([1e-3], np.float32), "BF16")[0]


def test_ulps_are_of_the_coarser_dtype_after_rounding() -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    assert coarser("F32", "BF16") == "BF16" and coarser("F16", "F32") == "F16"
    assert _distance(cast(values, "BF16"), values, "BF16").ulps == (0, 0, 0)
    assert _distance(cast(values, "BF16"), values, "F32").ulps[0] > 1000


def test_choices_of_tokens() -> None:
    r = np.array([[3.0, 2.0, 0.0], [0.0, 1.0, 1.5], [5.0, 0.0, 0.0]], np.float32)
    x = np.array([[2.0, 2.5, 0.0], [0.0, 1.0, 1.5], [5.0, 0.0, 0.0]], np.float32)
    found = choices(x, r)
    assert (found.rows, found.same, found.margin) == (3, 2, 1.0)
    p, q = (np.exp(each[0]) / np.exp(each[0]).sum() for each in (r.astype(float), x.astype(float)))
    assert found.kl == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5) == pytest.approx(found.kl_max, rel=1e-5)
    x[0, 0] = np.nan
    assert choices(x, r).kl_max == np.inf


def test_nothing_but_nan_on_both_sides_is_no_agreement() -> None:
    """A reference of NaN is no reference, whatever the candidate is."""
    from dayzero.stages.check.compare.metrics import FAR, Tally

    nothing = np.full((3, 4), np.nan, dtype=np.float32)
    tally = Tally("F32", 4)
    tally.add(nothing, nothing)
    assert tally.distance().relative_l2 == FAR


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), width=st.integers(1, 3000), coarse=st.booleans(), nan=st.booleans())
def test_the_likeliest_tokens_are_those_of_a_sort(seed: int, width: int, coarse: bool, nan: bool) -> None:
    row = np.random.default_rng(seed).standard_normal(width).astype(np.float32)
    row = np.round(row) if coarse else row
    row[: int(nan)] = np.nan
    k = min(10, width)
    assert np.array_equal(np.sort(row[likeliest(row, k)]), np.sort(row)[-k:], equal_nan=True)


def test_ulps_of_many_values_are_those_of_an_even_sample() -> None:
    rng = np.random.default_rng(0)
    r = rng.standard_normal((700, 100)).astype(np.float32)
    x = cast(r * (1 + 0.01 * rng.standard_normal(r.shape)).astype(np.float32), "BF16")
    every = np.sort(ulps(x, r, "BF16").reshape(-1))
    median, high, largest = _distance(x, r, "BF16").ulps
    assert abs(median - np.median(every)) <= 1 and high == pytest.approx(every[int(0.99 * len(every))], abs=1)
    assert every[int(0.999 * len(every))] <= largest <= every[-1]
    assert _distance(x[:80], r[:80], "BF16").ulps[2] == ulps(x[:80], r[:80], "BF16").max()
