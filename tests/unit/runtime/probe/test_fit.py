"""Lines through seconds of messages: exact on exact lines, near on noisy ones, in the terms of the collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.runtime.probe.fit import fitted, line
from dayzero.schema import COLLECTIVES, Cluster, Device, Link
from dayzero.stages.plan.times import collectives as c

SIZES = tuple(1 << power for power in range(10, 26, 2))


@given(start=st.floats(1e-6, 1e-2), pace=st.floats(1e-12, 1e-8))
def test_an_exact_line_is_found(start: float, pace: float) -> None:
    found = line(SIZES, [start + pace * size for size in SIZES])
    assert found == pytest.approx((start, pace), rel=1e-5)


def test_noise_of_a_fifth_moves_it_by_less() -> None:
    random = np.random.default_rng(1)
    seconds = [(1e-4 + 1e-9 * size) * random.uniform(0.8, 1.2) for size in SIZES]
    assert line(SIZES, seconds) == pytest.approx((1e-4, 1e-9), rel=0.2)


def test_neither_is_negative() -> None:
    assert line((1000, 2000), (1.0, 4.0))[0] == 0.0
    assert line((1000, 2000), (2.0, 1.0)) == (1.5, 0.0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_fitted_is_what_plans_are_made_with(collective: str, ranks: int) -> None:
    """Seconds as the model of collectives has them give back the link that they are of."""
    device = Device(name="d", vendor="", arch="", memory_bytes=1, memory_bandwidth=1e12, flops={"x": 1e9},
                    links=(Link(name="l", devices=0, bandwidth=20e9, latency=3e-5, source=""),))
    cluster = Cluster(device=device, devices_per_node=8, nodes=1, memory_utilization=0.9, network=None)
    call = getattr(c, collective)
    rounds = {size: [float(call(c.fabric(cluster, collective), c.Group(ranks), size).total)] * 3 for size in SIZES}
    timing, reached = fitted(collective, ranks, 1, rounds)
    assert reached.latency == pytest.approx(3e-5) and reached.bandwidth == pytest.approx(20e9)
    assert timing.residual < 1e-6 and timing.rounds == 3 and set(timing.spread) == {0.0}


def test_what_was_timed_is_kept() -> None:
    timing, _ = fitted("all_to_all", 2, 4, {1000: [1.0, 3.0, 2.0], 100: [1.0, 1.0, 1.0]})
    assert (timing.sizes, timing.seconds, timing.spread) == ((100, 1000), (1.0, 2.0), (0.0, 1.0))
    assert (timing.ranks, timing.groups) == (2, 4)
