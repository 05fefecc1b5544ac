"""What tiers cost, of one rank and of all ranks together."""

from __future__ import annotations

import pytest

from dayzero.schema import Budget, Layout, TierRecord
from dayzero.schema.tiers import together


def record(**changes: object) -> TierRecord:
    """Ten passes that each need 1 kB, half of which is there, at 1 kB/s."""
    return TierRecord(**{
        "passes": 10, "kept": {}, "slots": 4, "experts": 8, "policy": "fading", "foresight": "none", "hits": 0,
        "late": 0, "misses": 0, "ahead": 0, "useful": 0, "needed_bytes": 10_000, "fresh_bytes": 5_000,
        "stored_bytes": 0, "read_bytes": 6_000, "stall_s": 2.0, "seconds": 10.0, "bandwidth": 1000.0,
        "source": "page cache", **changes})  # type: ignore[arg-type]


def test_one_rank() -> None:
    one = record(stored_bytes=1_000)
    assert one.hit == pytest.approx(0.6)  # 5 kB as values, 1 kB as stored, of 10 kB
    assert one.bound_s == pytest.approx(0.4) and one.reached == pytest.approx(0.4)
    total = together([one], Layout())
    assert total is not None
    assert (total.hit, total.bound_s, total.reached) == (one.hit, one.bound_s, one.reached)
    assert (total.needed_bytes, total.read_bytes, total.stored_bytes) == (1000, 600, 100)
    assert (total.stall_s, total.seconds) == (pytest.approx(0.2), pytest.approx(1.0))


def test_stages_follow_one_another_and_their_ranks_work_together() -> None:
    """tp=2, pp=2: the slower rank of each stage counts, and the stages add up; bytes are those of all."""
    ranks = [record(), record(bandwidth=500.0, stall_s=4.0), record(), record(seconds=20.0)]
    total = together(ranks, Layout(tp=2, pp=2))
    assert total is not None
    assert total.bound_s == pytest.approx(1.0 + 0.5) and total.stall_s == pytest.approx(0.4 + 0.2)
    assert total.seconds == pytest.approx(1.0 + 2.0) and total.needed_bytes == pytest.approx(4000)


def test_replicas_are_averaged() -> None:
    total = together([record(), record(passes=5, seconds=10.0)], Layout(dp=2))
    assert total is not None
    assert total.needed_bytes == pytest.approx((1000 + 2000) / 2) and total.seconds == pytest.approx((1.0 + 2.0) / 2)


def test_a_bound_needs_every_rank_to_be_measured() -> None:
    total = together([record(), record(bandwidth=None)], Layout(tp=2))
    assert total is not None and total.bound_s is None and total.reached is None


def test_ranks_that_hold_all_and_ranks_that_never_ran_cost_nothing() -> None:
    assert together([None, None], Layout(tp=2)) is None
    assert together([record(passes=0)], Layout()) is None
    total = together([record(), None], Layout(pp=2))
    assert total is not None and total.seconds == pytest.approx(1.0) and total.needed_bytes == pytest.approx(1000)


@pytest.mark.parametrize(("budget", "limited"), [
    (Budget(), False), (Budget(host=0), True), (Budget(device=5), True), (Budget(keep="stored"), True)])
def test_a_budget_that_limits_nothing(budget: Budget, limited: bool) -> None:
    assert budget.limited == limited
