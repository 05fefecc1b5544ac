"""A rate that changes: the whole target is changed, and the ranking may turn."""

import msgspec
import numpy as np
import pytest
from tests.support.plan_models import device, target

from dayzero.schema import Layout, Limits, Link
from dayzero.schema.hardware import Reached
from dayzero.stages.plan.choice.sensitivity import RESOURCES, scaled, sensitivity

LAYOUTS = [Layout(tp=8), Layout(dp=8)]


def rates(on):
    """tp=8 sends much, dp=8 moves much memory: seconds of each at the target's rates."""
    cluster = on.cluster
    sent, moved = 1e8 / cluster.link(8).bandwidth, 1e9 / cluster.device.memory_bandwidth
    seconds = np.array([10 * sent + 0.1 * moved, 11 * moved])
    return {"tokens_per_s": 1 / seconds, "tpot_s": seconds}


def test_each_rate_is_changed_alone():
    plain = target(8, 2)
    for resource, get in zip(RESOURCES, (lambda t: t.cluster.device.memory_bandwidth, lambda t: t.cluster.link(16)
                                         .bandwidth, lambda t: t.cluster.device.flops["bf16"]), strict=True):
        changed = scaled(plain, resource, 0.8)
        assert get(changed) == pytest.approx(0.8 * get(plain))
        for other in RESOURCES:
            back = scaled(changed, resource, 1.25) if other == resource else scaled(plain, resource, 1.0)
            assert get(back) == pytest.approx(get(plain))
    assert scaled(plain, "link bandwidth", 2.0).cluster.device.links[0].bandwidth == pytest.approx(2e11)


def test_what_was_measured_of_a_link_goes_along():
    link = Link(name="l", devices=8, bandwidth=1e11, latency=1e-5, source="test",
                collectives={"all_reduce": Reached(latency=1e-6, bandwidth=4e10)})
    changed = scaled(target(8, on=device(links=(link,))), "link bandwidth", 1.5).cluster.device.links[0]
    assert changed.collectives["all_reduce"] == Reached(latency=1e-6, bandwidth=6e10)


def test_the_ranking_may_turn():
    found = {(one.resource, one.factor): one for one in sensitivity(target(8), LAYOUTS, rates)}
    assert len(found) == 6
    slow = found["link bandwidth", 0.8]
    assert slow.first == Layout(dp=8) and slow.lead == pytest.approx((10 * 1e-3 / 0.8 + 1e-4) / 11e-3 - 1)
    assert slow.before["tpot_s"] == pytest.approx(0.0101) and slow.after["tpot_s"] == pytest.approx(0.0126)
    assert found["link bandwidth", 1.2].first == Layout(tp=8) and found["link bandwidth", 1.2].lead == 0
    assert found["matrix rate", 0.8].before == found["matrix rate", 0.8].after


def test_a_limit_that_is_broken_then() -> None:
    """tp=8 is first and takes 10.1 ms; with slower links it takes 12.6 ms, and dp=8, at 11 ms, is faster anyway; with
    slower memory dp=8 takes 13.75 ms, and only tp=8 keeps to 12 ms."""
    limited = msgspec.structs.replace(target(8), limits=Limits(tpot_s=0.0102))
    found = {(one.resource, one.factor): one for one in sensitivity(limited, LAYOUTS, rates)}
    assert found["link bandwidth", 0.8].first == Layout(dp=8), "none keeps to it: the faster one"
    assert found["memory bandwidth", 1.2].first == Layout(dp=8) and found["memory bandwidth", 1.2].lead > 0
    slower = msgspec.structs.replace(target(8), limits=Limits(tpot_s=0.0101))

    def backwards(on):
        figures = rates(on)
        return {"tokens_per_s": np.array([1000.0, 500.0]), "tpot_s": figures["tpot_s"] - np.array([0.0, 0.0015])}

    turned = {(one.resource, one.factor): one for one in sensitivity(slower, LAYOUTS, backwards)}["link bandwidth", 0.8]
    assert turned.first == Layout(dp=8) and turned.lead == pytest.approx(-0.5)
    assert turned.turns == "dp=8, for a limit is broken"


def test_requests_that_a_layout_does_not_keep_up_with() -> None:
    """Memory below 0.9 TB/s: tp=8 gives nothing."""
    def stable(on):
        slow = on.cluster.device.memory_bandwidth < 0.9e12
        return {"tokens_per_s": np.array([0.0 if slow else 10.0, 9.0]),
                "tpot_s": np.array([np.inf if slow else 0.01, 0.02])}

    found = {(one.resource, one.factor): one for one in sensitivity(target(8), LAYOUTS, stable)}
    slow = found["memory bandwidth", 0.8]
    assert slow.after == {} and slow.first == Layout(dp=8) and slow.turns == "the first does not keep up; dp=8"
    assert found["memory bandwidth", 1.2].after == {"tokens_per_s": 10.0, "tpot_s": 0.01}


def test_one_device_has_no_links_to_change():
    def alone(on):
        return {"tokens_per_s": np.array([on.cluster.device.memory_bandwidth])}

    found = sensitivity(target(1), [Layout()], alone)
    assert {one.resource for one in found} == {"memory bandwidth", "matrix rate"}
    assert sensitivity(msgspec.structs.replace(target(1), layouts=()), [], alone) == ()
