"""Choices as sets: a flip is legitimate where the scores explain it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.stages.check.compare.routers import flips, members


def _top(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), biased=st.booleans(), sigmoid=st.booleans(),
       noise=st.sampled_from([1e-6, 1e-2, 0.3]))
def test_a_correct_router_is_never_without_explanation(seed: int, biased: bool, sigmoid: bool, noise: float) -> None:
    rng = np.random.default_rng(seed)
    old = rng.standard_normal((64, 16)).astype(np.float32)
    new = (old + noise * rng.standard_normal(old.shape)).astype(np.float32)
    bias = rng.standard_normal(16) * biased
    chosen = [_top((1 / (1 + np.exp(-each.astype(float))) if sigmoid else each.astype(float)) + bias, 4)
              for each in (old, new)]
    found = flips(*chosen, old, new, "F32")
    assert np.isfinite(found.gap).all()
    assert (found.gap <= 2 * np.abs(new - old).max() + 1e-6).all()


def test_the_order_within_a_set_is_no_flip() -> None:
    scores = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    chosen = _top(scores, 3)
    found = flips(chosen, chosen[:, ::-1], scores, scores, "F32")
    assert not len(found.rows) and found.overlap == 1.0


def test_a_bias_that_one_of_them_rounded_is_seen() -> None:
    rng = np.random.default_rng(1)
    scores = rng.random((4096, 32)).astype(np.float32)
    bias = 8 + rng.random(32)
    rounded = np.round(bias * 16) / 16  # steps of 2^-4, as bf16 has between 8 and 16
    noisy = scores + (1e-5 * rng.standard_normal(scores.shape)).astype(np.float32)
    found = flips(_top(scores + bias, 4), _top(noisy + rounded, 4), scores, noisy, "F32")
    assert len(found.rows) > 100 and np.isinf(found.gap).any()


def test_choices_from_groups_may_flip_with_a_group() -> None:
    rng = np.random.default_rng(2)
    old = rng.random((512, 16)).astype(np.float32)
    new = (old + 1e-2 * rng.standard_normal(old.shape)).astype(np.float32)

    def grouped(scores: np.ndarray) -> np.ndarray:
        sums = np.sort(scores.reshape(-1, 4, 4), axis=2)[:, :, -2:].sum(axis=2)
        kept = np.argsort(-sums, axis=1)[:, :2]
        mask = np.zeros((len(scores), 4), bool)
        np.put_along_axis(mask, kept, True, axis=1)
        return _top(np.where(np.repeat(mask, 4, axis=1), scores, -1), 4)

    found = flips(grouped(old), grouped(new), old, new, "F32")
    assert len(found.rows) and np.isfinite(found.gap).all()


def test_without_scores_nothing_explains_a_flip() -> None:
    found = flips(np.array([[0, 1], [2, 3]]), np.array([[1, 0], [2, 4]]), None, None, "F32")
    assert found.rows.tolist() == [1] and np.isinf(found.gap).all() and found.overlap == 0.75


def test_indices_out_of_range_count_for_none() -> None:
    assert members(np.array([[-1, 2, 9]]), 3).tolist() == [[False, False, True]]
