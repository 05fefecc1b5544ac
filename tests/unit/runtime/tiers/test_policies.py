"""Which expert goes, on traces small enough to follow by hand, and against the best that knows the future."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.tiers.policies import Fading, Fixed, Frequent, Policy, Recent
from dayzero.runtime.tiers.replay import best, replay

TRACES = st.lists(st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=2).map(sorted), min_size=2, max_size=2),
                  min_size=1, max_size=12)


def test_recent_drops_what_was_used_longest_ago() -> None:
    """a b a c: c takes the place of b, so a is still there and b is not: hits are a, a."""
    assert replay([[["a"]], [["b"]], [["a"]], [["c"]], [["a"]], [["b"]]], Recent(), 2) == pytest.approx(2 / 6)


def test_frequent_remembers_what_was_evicted() -> None:
    """With two slots a stays while b and c take turns, and is still there in the end."""
    trace = [[[key]] for key in "aaabcbca"]
    assert replay(trace, Frequent(), 2) == pytest.approx(3 / 8)  # a, a, a
    assert replay(trace, Recent(), 2) == pytest.approx(4 / 8)  # a, a, b, c


def test_fading_forgets() -> None:
    """Ten uses long ago weigh less than two now."""
    fading, plain = Fading(half=2), Frequent()
    scores: dict[str, dict[str, float]] = {"fading": {}, "plain": {}}
    for time, key in enumerate("a" * 10 + "-" * 20 + "bb"):
        scores["fading"][key] = fading.used(key, time)
        scores["plain"][key] = plain.used(key, time)
    assert scores["fading"]["b"] > scores["fading"]["a"]
    assert scores["plain"]["b"] < scores["plain"]["a"]


def test_fading_is_the_logarithm_of_the_sum() -> None:
    """Uses in passes 0, 2, 6 with half 2: log2(2^0 + 2^1 + 2^3)."""
    fading = Fading(half=2)
    assert [fading.used("a", time) for time in (0, 2, 6)][-1] == pytest.approx(3.4594316, abs=1e-6)
    assert Fading(1).used("a", 10**6) == 10**6  # does not overflow


@given(TRACES, st.integers(2, 8))
def test_nobody_beats_who_knows_the_future(trace: list[list[list[int]]], slots: int) -> None:
    counts = Counter((number, key) for layers in trace for number, keys in enumerate(layers) for key in keys)
    policies: tuple[Policy, ...] = (Recent(), Frequent(), Fading(4), Fixed(counts))
    assert all(replay(trace, policy, slots) <= best(trace, slots) + 1e-12 for policy in policies)


@given(TRACES)
def test_with_room_for_all_only_the_first_use_misses(trace: list[list[list[int]]]) -> None:
    needs = [(number, key) for layers in trace for number, keys in enumerate(layers) for key in keys]
    assert replay(trace, Recent(), 100) == best(trace, 100) == pytest.approx(1 - len(set(needs)) / len(needs))
