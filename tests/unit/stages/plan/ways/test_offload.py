"""What is moved to the host when it does not fit, and the least time that costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import device

from dayzero.stages.plan.ways.offload import CAUSES, STEP, Held, offload

GB = 1e9


def held(experts: float = 0.0, weights: float = 20 * GB, cache: float = 5 * GB, visited: float = 1.0) -> Held:
    return Held(*(np.array([one]) for one in (experts, weights, cache, visited)))


def test_nothing_lacks_nothing_moves() -> None:
    got = offload(np.array([-1.0, 0.0]), Held(*(np.full(2, one) for one in (GB, GB, GB, 1.0))), device())
    assert got.possible.all()
    assert not got.bound_s.any() and not got.needed_bytes.any()
    assert not any(share.any() for share in got.shares.values())


def test_a_quarter_of_the_weights_over_a_link() -> None:
    """5 of 20 GB over 50 GB/s take a tenth of a second."""
    got = offload(np.array([5 * GB]), held(), device(host_bandwidth=50 * GB))
    assert got.shares["weights"] == pytest.approx([0.25])
    assert got.bound_s == pytest.approx([0.1])
    assert (got.host_bytes, got.disk_bytes) == (pytest.approx([5 * GB]), [0.0])


def test_experts_first_and_only_those_that_are_visited() -> None:
    got = offload(np.array([50 * GB]), held(experts=100 * GB, visited=0.04), device(host_bandwidth=50 * GB))
    assert got.shares["experts"] == pytest.approx([0.5])
    assert got.shares["weights"] == [0.0]
    assert got.needed_bytes == pytest.approx([2 * GB])
    assert got.bound_s == pytest.approx([0.04])


def test_what_the_host_does_not_hold_is_on_disk() -> None:
    chip = device(host_bandwidth=50 * GB, host_memory_bytes=int(4 * GB), disk_bandwidth=5 * GB)
    got = offload(np.array([10 * GB]), held(), chip)
    assert (got.host_bytes, got.disk_bytes) == (pytest.approx([4 * GB]), pytest.approx([6 * GB]))
    assert got.bound_s == pytest.approx([4 / 50 + 6 / 5])


def test_no_way_or_not_enough_to_move_is_not_possible() -> None:
    assert not offload(np.array([GB]), held(), device()).possible.any()
    chip = device(host_bandwidth=50 * GB)
    assert offload(np.array([25 * GB]), held(), chip).possible.all()
    assert not offload(np.array([26 * GB]), held(), chip).possible.any()
    assert not offload(np.array([10 * GB]), held(), device(host_bandwidth=GB, host_memory_bytes=int(GB))).possible.any()


SIZES = st.integers(0, 10**6).map(lambda size: size * 1e6)


@given(lacking=SIZES, more=SIZES, experts=SIZES, weights=SIZES, cache=SIZES, visited=st.floats(0.01, 1.0))
def test_what_is_moved_suffices_and_costs_more_the_more_lacks(lacking: float, more: float, experts: float,
                                                              weights: float, cache: float, visited: float) -> None:
    chip = device(host_bandwidth=50 * GB)
    things = held(experts, weights, cache, visited)
    few, many = (offload(np.array([size]), things, chip) for size in (lacking, lacking + more))
    if few.possible.all():
        freed = sum(float(few.shares[cause][0] * getattr(things, cause)[0]) for cause in CAUSES)
        assert freed >= lacking * (1 - 1e-9)
        assert freed == pytest.approx(float(few.host_bytes[0]))
        rounds = np.array([few.shares[cause][0] / STEP for cause in CAUSES])
        assert rounds == pytest.approx(rounds.round())
    assert many.bound_s[0] >= few.bound_s[0]
    assert few.bound_s[0] == np.inf or few.bound_s[0] == pytest.approx(few.needed_bytes[0] / (50 * GB))
