"""Intervals against published ones; power against simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.stages.check.tasks.statistics import paired_numbers, paired_shares, two_shares, wilson


def answers(both: int, lost: int, won: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([1] * (both + lost) + [0] * (won + neither), dtype=float)
    second = np.array([1] * both + [0] * lost + [1] * won + [0] * neither, dtype=float)
    return first, second


def test_counts_as_published() -> None:
    """Newcombe 1998, Statistics in Medicine 17:873, table II: 56/70 - 48/80, method 10: 0.0524 to 0.3339."""
    found = two_shares((48, 80), (56, 70))
    assert (round(found.difference, 4), round(found.low, 4), round(found.high, 4)) == (0.2, 0.0524, 0.3339)


def test_pairs_as_published() -> None:
    """Newcombe 1998, Statistics in Medicine 17:2635: 36, 12, 2, 0 of 50, method 10: 0.0569 to 0.3404."""
    baseline, candidate = answers(36, 2, 12, 0)
    found = paired_shares(baseline, candidate)
    assert (round(found.difference, 4), round(found.low, 4), round(found.high, 4)) == (0.2, 0.0569, 0.3404)


def test_a_share_as_published() -> None:
    """Newcombe 1998, 17:857, table I: 81/263 by Wilson's score: 0.2553 to 0.3662."""
    assert [round(each, 4) for each in wilson(81, 263)] == [0.2553, 0.3662]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_difference_is_within_its_interval(both: int, lost: int, won: int, neither: int) -> None:
    if both + lost + won + neither == 0:
        return
    baseline, candidate = answers(both, lost, won, neither)
    found, back = paired_shares(baseline, candidate), paired_shares(candidate, baseline)
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert (round(back.low, 9), round(back.high, 9)) == (round(-found.high, 9), round(-found.low, 9))
    assert 0 < found.detectable <= 1


@pytest.mark.parametrize(("count", "differ"), [(200, 0.1), (1000, 0.05), (400, 0.3)])
def test_the_detectable_loss_is_seen_in_four_of_five(count: int, differ: float) -> None:
    """McNemar's test at 5 % on simulated pairs that lose just that."""
    half = round(count * differ / 2)
    baseline, candidate = answers(count // 2, half, half, count - count // 2 - 2 * half)
    loss = paired_shares(baseline, candidate).detectable
    drawn = np.random.default_rng(1).multinomial(count, [(differ + loss) / 2, (differ - loss) / 2, 1 - differ], 4000)
    lost, won = drawn[:, 0], drawn[:, 1]
    seen = np.abs(lost - won) / np.sqrt(lost + won) > 1.96
    assert 0.76 < seen.mean() < 0.84


def test_numbers_are_paired() -> None:
    """The same noise in both leaves a small difference to be seen that is far below the scatter between items."""
    random = np.random.default_rng(3)
    baseline = random.normal(2.0, 1.0, 60)
    candidate = baseline - 0.02 + random.normal(0.0, 0.01, 60)
    found = paired_numbers(baseline, candidate, np.ones(60))
    assert found.low < -0.02 < found.high < 0 and found.high - found.low < 0.01
    assert found == paired_numbers(baseline, candidate, np.ones(60))


@pytest.mark.parametrize("items", [10, 40])
def test_intervals_of_numbers_cover(items: int) -> None:
    """95 of 100 times, for few items too: quantiles of the samples alone cover 90 with ten."""
    random, held = np.random.default_rng(5), 0
    for _ in range(400):
        gaps = random.normal(0.1, 1.0, items)
        found = paired_numbers(np.zeros(items), gaps, np.ones(items))
        held += found.low <= 0.1 <= found.high
    assert 0.93 < held / 400 < 0.975
