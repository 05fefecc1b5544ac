"""Ranking, trade-offs over loads, other rates and the smallest cluster, with an evaluation made by hand: a token takes
1 ms for each of 8 shares of the weights, and 0.1 ms for each sequence of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.plan_models import target

from dayzero.placement import layouts
from dayzero.placement.many import Layouts
from dayzero.schema import Layout, Limits
from dayzero.stages.plan.choice.answers import position, rate_changes, smallest_cluster, trade_offs
from dayzero.stages.plan.choice.rank import digits, ranked


@dataclass
class Made:
    layouts: Layouts
    fits: Any
    need_bytes: Any
    max_sequences: Any
    ttft_s: Any
    tpot_s: Any
    tokens_per_s: Any


def evaluate(on, some) -> Made:
    cluster, load = on.cluster, on.workload.concurrency
    each = np.ceil(load / some.dp)
    memory = 1e12 / cluster.device.memory_bandwidth
    tpot = 8e-3 / some.tp * memory + 1e-4 * each + 2e-5 * some.tp
    need = 100 / some.tp + each
    return Made(layouts=some, fits=need <= 60, need_bytes=need, tpot_s=tpot, ttft_s=0.1 * each / some.tp,
                tokens_per_s=load / tpot, max_sequences=np.maximum(0, 60 - 100 // some.tp) * some.dp)


def legal(on) -> Layouts:
    return Layouts.of(one for one in layouts(on.cluster.world_size, False) if one.pp == 1)


def found(on) -> Made:
    return evaluate(on, legal(on))


def test_the_order_is_that_of_groups_and_throughput() -> None:
    on = target(8, concurrency=16)
    one = found(on)
    order = [one.layouts[row] for row in ranked(one, Limits())]
    assert order[-1] == Layout(dp=8) and not one.fits[position(one.layouts, Layout(dp=8))]
    rates = [one.tokens_per_s[row] for row in ranked(one, Limits()) if one.fits[row]]
    assert rates == sorted(rates, reverse=True)
    limited = ranked(one, Limits(ttft_s=0.25))  # 0.1 * 16 / 8 of tp=8; 0.1 * 4 / 2 of tp=2
    within = [one.ttft_s[row] <= 0.25 for row in limited if one.fits[row]]
    assert within == sorted(within, reverse=True)


def test_equal_to_three_digits_is_decided_by_the_first_token_and_then_by_memory() -> None:
    some = Layouts.of([Layout(dp=2), Layout(tp=2), Layout(pp=2)])
    made = Made(some, np.ones(3, bool), np.array([3.0, 2.0, 1.0]), np.ones(3), np.array([1.0, 1.0001, 2.0]), np.ones(3),
                np.array([1000.0, 1000.4, 1000.2]))
    assert ranked(made, Limits()).tolist() == [1, 0, 2]
    plain = Made(Layouts.of([Layout(tp=4, cp=4), Layout(tp=4), Layout(tp=4, attention_tp=2)]), np.ones(3, bool),
                 np.array([1.0, 3.0, 2.0]), np.ones(3), np.ones(3), np.ones(3), np.full(3, 1000.0))
    assert ranked(plain, Limits()).tolist() == [1, 0, 2], "what is shared within tp has to be worth it"
    assert digits(np.array([123456.0, 0.00123456])).tolist() == pytest.approx([123000.0, 0.00123])


def test_trade_offs_are_beaten_by_no_layout_at_any_load() -> None:
    on = target(8, concurrency=16)
    points = trade_offs(on, found(on), evaluate)
    assert points and [point.tpot_s for point in points] == sorted(point.tpot_s for point in points)
    every = [(load, evaluate(msgspec.structs.replace(on, workload=msgspec.structs.replace(
        on.workload, concurrency=load)), legal(on))) for load in (1, 2, 4, 8, 16, 32, 64, 128)]
    for point in points:
        for name in point.best_for:
            own = getattr(point, f"{name}_s")
            for _, made in every:
                better = (made.tokens_per_s / 8 > point.tokens_per_s_per_device * (1 + 1e-9)) & made.fits
                assert not (better & (getattr(made, f"{name}_s") <= own)).any()
    assert points[0].tokens_per_s_per_user == pytest.approx(1 / points[0].tpot_s)
    assert points[0].layout == Layout(tp=8) and points[0].concurrency == 1
    by_rate = max(points, key=lambda point: point.tokens_per_s_per_device)
    assert by_rate.concurrency >= 64


def test_points_beyond_a_limit_are_marked() -> None:
    on = msgspec.structs.replace(target(8, concurrency=16), limits=Limits(tpot_s=0.002))
    points = trade_offs(on, found(on), evaluate)
    assert {point.within for point in points} == {True, False}
    assert all(point.within == (point.tpot_s <= 0.002) for point in points)


def test_no_room_no_trade_offs() -> None:
    on = target(1)
    assert trade_offs(on, found(on), evaluate) == ()
    assert rate_changes(on, found(on), evaluate, ranked(found(on), on.limits)) == ()


def test_slower_memory_is_worse_and_turns_to_more_parts() -> None:
    on = target(8, concurrency=64)
    made = rate_changes(on, found(on), evaluate, ranked(found(on), on.limits))
    changes = {(one.resource, one.factor): one for one in made}
    slower = changes["memory bandwidth", 0.8]
    assert slower.after["tpot_s"] > slower.before["tpot_s"] and set(slower.before) == {
        "tokens_per_s", "tpot_s", "ttft_s"}
    assert changes["matrix rate", 0.8].before == changes["matrix rate", 0.8].after


def test_the_smallest_that_fits_and_that_keeps_to_the_limits() -> None:
    on = target(8, concurrency=8)
    fits = smallest_cluster(on, found)
    assert [(one.devices, one.layout) for one in fits] == [(2, Layout(tp=2))]
    limited = msgspec.structs.replace(on, limits=Limits(tpot_s=0.0016))
    both = smallest_cluster(limited, found)
    assert [one.works for one in both] == ["fits", "within limits"]
    assert both[1].devices > both[0].devices and both[1].figures["tpot_s"] <= 0.0016
    # every smaller size has no layout that keeps to it
    for devices in range(1, both[1].devices):
        smaller = found(msgspec.structs.replace(limited, cluster=target(devices).cluster))
        assert not (smaller.fits & (smaller.tpot_s <= 0.0016)).any()


def test_position() -> None:
    some = Layouts.of([Layout(dp=2), Layout(tp=2), Layout(tp=2, attention_tp=1)])
    assert position(some, Layout(tp=2)) == 1 and position(some, Layout(tp=2, attention_tp=1)) == 2
    assert position(some, Layout(pp=2)) is None
