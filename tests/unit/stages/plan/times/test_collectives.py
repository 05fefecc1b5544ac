"""Times of collectives: closed forms, order of the ways, groups across edges of domains."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import TargetError
from dayzero.schema import Cluster, Device, Link, Reached
from dayzero.stages.plan.times import collectives as c

MB = 1e6


def link(bandwidth: float, devices: int = 0, latency: float = 1e-6, **more: object) -> Link:
    return Link(name="l", devices=devices, bandwidth=bandwidth, latency=latency, source="", **more)  # type: ignore[arg-type]


def joined(nodes: int, node: int, links: tuple[Link, ...], network: Link | None = None, **more: object) -> Cluster:
    device = Device(name="d", vendor="", arch="", memory_bytes=1, memory_bandwidth=1e12, flops={"bf16": 1e12},
                    links=links)
    return Cluster(device=device, devices_per_node=node, nodes=nodes, memory_utilization=0.9, network=network,
                   **more)  # type: ignore[arg-type]


def cluster(node: int = 8, nodes: int = 4, **more: object) -> Cluster:
    values = {"network": link(50e9, 0, 1e-5), **more}
    return joined(nodes, node, (link(400e9, 8),), **values)  # type: ignore[arg-type]


def over(name: str = "all_reduce", **more: object) -> c.Fabric:
    return c.fabric(cluster(**more), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_closed_forms_inside_a_node(ranks: int) -> None:
    # the fewest messages and bytes: Thakur, Rabenseifner, Gropp, 2005
    depth, share = log2(ranks), (ranks - 1) / ranks
    fabric = over()
    assert c.all_reduce(fabric, c.Group(ranks), MB).total == pytest.approx(2 * depth * 1e-6 + 2 * share * MB / 400e9)
    for call in (c.all_gather, c.reduce_scatter, c.all_to_all):
        assert call(fabric, c.Group(ranks), MB).total == pytest.approx(depth * 1e-6 + share * MB / 400e9)
    visited = ranks * (1 - (1 - 1 / ranks) ** 8)
    assert c.dispatch(fabric, c.Group(ranks), MB, 8, imbalance=1.5).total == pytest.approx(
        depth * 1e-6 + 1.5 * MB * visited * share / 400e9)
    assert c.point_to_point(fabric, c.Group(ranks), MB).total == pytest.approx(1e-6 + MB / 400e9)


def test_one_rank_sends_nothing() -> None:
    for call in (c.all_reduce, c.all_gather, c.reduce_scatter, c.all_to_all):
        assert call(over(), c.Group(1), MB).total == 0
    assert c.dispatch(over(), c.Group(1), MB, 4).total == 0


def test_the_network_carries_the_part_of_a_device() -> None:
    # large: the levels one after another take 2 (7/8 / 400 + 1/8 x 3/4 / 50) ns a byte, a ring that enters each node
    # over all 8 cards 2 x 31/32 / 400
    large = c.all_reduce(over(), c.Group(32), 1e12)
    assert large.total == pytest.approx(2 * 31 / 32 * 1e12 / 400e9, rel=1e-3)
    # small: 6 messages inside, 4 between nodes
    assert c.all_reduce(over(), c.Group(32), 1).total == pytest.approx(2 * (3 * 1e-6 + 2 * 1e-5), rel=1e-3)


def test_a_token_crosses_the_network_once_for_each_node() -> None:
    nodes = 4 * (1 - 0.75**8)
    sent = c.dispatch(over("all_to_all"), c.Group(32), 1e9, 8)
    inside = 32 * (1 - (31 / 32) ** 8) * 7 / 8
    assert sent.sending == pytest.approx(1e9 * (nodes * 3 / 4 / 50e9 + inside / 400e9))


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), [(64, 173e-6, 314e-6), (128, 192e-6, 369e-6),
                                                            (256, 194e-6, 360e-6)])
def test_published_times_of_exchanges(ranks: int, dispatch: float, combine: float) -> None:
    """deepseek-ai/DeepEP docs/legacy.md, kernels that send over the cards alone: 128 tokens of 7168 values to 8
    experts, out in 8 bits with a scale of 4 bytes for 128, back in 16; 43 GB/s out and 46 back at 64 ranks."""
    for seconds, row, rate in ((dispatch, 7168 + 7168 // 128 * 4, 43e9), (combine, 2 * 7168, 46e9)):
        fabric = c.fabric(joined(ranks, 1, (), link(rate, 0, 0.0)), "all_to_all")
        assert c.dispatch(fabric, c.Group(ranks), 128 * row, 8).total == pytest.approx(seconds, rel=0.2)


def test_cards_that_are_shared() -> None:
    alone, shared = over(), c.fabric(cluster(network=link(50e9, 0, 1e-5, shared_by=4)), "all_reduce")
    one = c.all_gather(alone, c.Group(4, 8), 1e9).sending
    assert c.all_gather(shared, c.Group(4, 8), 1e9).sending == pytest.approx(4 * one)


def test_strided_groups_and_edges() -> None:
    fabric = over()
    # every 8th rank: only the network; every 4th of 4 ranks: two of each node
    assert [int(m) for m in fabric.members(c.Group(4, 8))] == [1, 1, 4]
    assert [int(m) for m in fabric.members(c.Group(4, 4))] == [1, 2, 4]
    # groups of 3 do not fit into nodes of 8: some group has all its members in different pieces
    assert [int(m) for m in fabric.members(c.Group(3, 1))] == [1, 1, 3]
    assert [int(m) for m in fabric.members(c.Group(6, 1))] == [1, 2, 6]
    many = fabric.members(c.Group(np.array([3, 4, 8, 16]), np.array([1, 4, 1, 2])))
    assert np.array(many[1:]).tolist() == [[1, 2, 8, 4], [3, 4, 8, 16]]


def test_groups_of_several_replicas() -> None:
    fabric = over()
    # 4 neighbours of each of 4 replicas that are 8 apart: 4 in a node; of replicas that are 4 apart: two of them in one
    assert [int(m) for m in fabric.members(c.Group(4, 1, 4, 8))] == [1, 4, 16]
    assert [int(m) for m in fabric.members(c.Group(4, 1, 4, 4))] == [1, 8, 16]
    calls = fabric.calls(c.Group(np.array([1, 8, 16])))
    assert calls.called.tolist() == [0, 1, 1] and calls.far.tolist() == [0, 0, 1]
    assert calls.doublings.tolist() == [0, 3, 4]


def test_racks() -> None:
    fabric = c.fabric(cluster(network=link(50e9, 16, 1e-5), beyond=(link(10e9, 0, 2e-5),)), "all_reduce")
    assert [level.domain for level in fabric.levels] == [8, 16, 32]
    assert c.all_reduce(fabric, c.Group(32), 1).total == pytest.approx(2 * (3e-6 + 1e-5 + 2e-5), rel=1e-3)


def test_arrays_are_the_numbers_one_by_one() -> None:
    ranks, size, stride = np.array([1, 2, 8, 16, 32]), np.array([1.0, 1e3, 1e6, 1e9, 1e9]), np.array([1, 16, 1, 2, 1])
    fabric = over()
    for call in (c.all_reduce, c.all_gather, c.all_to_all, c.broadcast, lambda f, g, b: c.dispatch(f, g, b, 8)):
        many = call(fabric, c.Group(ranks, stride), size).total
        alone = [float(call(fabric, c.Group(int(r), int(s)), float(b)).total)
                 for r, b, s in zip(ranks, size, stride, strict=True)]
        assert many == pytest.approx(alone, rel=1e-12)


def test_what_was_measured_is_told_apart() -> None:
    reached = Reached(latency=2e-6, bandwidth=40e9)
    fabric = c.fabric(cluster(network=link(50e9, 0, 1e-5, collectives={"all_reduce": reached})), "all_reduce",
                      latency=False)
    taken = c.all_reduce(fabric, c.Group(4, 8), 1e9)
    assert (float(taken.sending), float(taken.reached)) == (0.0, pytest.approx(1.5 * 1e9 / 40e9))
    assert taken.waiting == pytest.approx(2 * 2 * 2e-6)
    inside = c.all_reduce(fabric, c.Group(8), 1e9)
    assert (float(inside.waiting), float(inside.reached)) == (0.0, 0.0) and inside.sending > 0


def test_what_nothing_joins_is_an_error() -> None:
    unstated = c.fabric(cluster(network=None), "all_reduce")
    assert c.all_reduce(unstated, c.Group(8), MB).total > 0
    with pytest.raises(TargetError, match="network between the nodes"):
        c.all_reduce(unstated, c.Group(np.array([8, 16])), MB)
    with pytest.raises(TargetError, match="no link that joins 16"):
        c.all_reduce(c.fabric(cluster(node=16), "all_reduce"), c.Group(16), MB)


def test_overlap() -> None:
    assert c.exposed(10.0, 100.0, 0.3) == pytest.approx(7.0)
    assert c.exposed(10.0, 1.0, 1.0) == pytest.approx(9.0)
    assert c.exposed(10.0, 100.0, 0.0) == 10.0


sizes = st.floats(0, 1e12)
powers = st.integers(0, 5).map(lambda power: 2**power)
speeds = st.tuples(st.floats(1e9, 1e12), st.floats(1e-7, 1e-4))


@given(inner=speeds, slower=st.tuples(st.floats(0, 1), st.floats(1, 100)), small=sizes, more=st.floats(0, 1e12),
       ranks=powers, times=st.sampled_from([1, 2, 4]))
def test_monotone_in_bytes_and_ranks(inner: tuple[float, float], slower: tuple[float, float], small: float,
                                     more: float, ranks: int, times: int) -> None:
    bandwidth, latency = inner
    outer = link(max(bandwidth * slower[0], 1e6), 0, latency * slower[1])
    fabric = c.fabric(joined(16, 8, (link(bandwidth, 8, latency),), outer), "all_reduce")
    for call in (c.all_reduce, c.all_gather, c.all_to_all, lambda f, g, b: c.dispatch(f, g, b, 8)):
        base = float(call(fabric, c.Group(ranks), small).total) * (1 - 1e-9)
        assert float(call(fabric, c.Group(ranks), small + more).total) >= base
        assert float(call(fabric, c.Group(ranks * times), small).total) >= base


@given(ranks=powers, size=sizes, domain=st.sampled_from([2, 4, 8, 16]))
def test_levels_that_are_alike_are_no_levels(ranks: int, size: float, domain: int) -> None:
    levels, flat = joined(32 // domain, domain, (link(100e9, domain),), link(100e9)), joined(1, 32, (link(100e9, 32),))
    for call in (c.all_reduce, c.all_gather, c.reduce_scatter):
        leveled, even = (float(call(c.fabric(each, "all_reduce"), c.Group(ranks), size).total)
                         for each in (levels, flat))
        assert leveled <= even * (1 + 1e-9)
    assert float(c.all_to_all(c.fabric(levels, "all_to_all"), c.Group(ranks), size).total) == pytest.approx(
        float(c.all_to_all(c.fabric(flat, "all_to_all"), c.Group(ranks), size).total))


def test_no_rank_gets_more_than_all_tokens() -> None:
    one, some, most, more = (c.dispatch(over("all_to_all"), c.Group(8), MB, 8, imbalance=value).total
                             for value in (1.0, 4.0, 8.0, 1e6))
    assert one < some < most == more


def test_a_network_that_does_not_join_all_is_told_as_such() -> None:
    short = over(network=link(50e9, 16, 1e-5))
    with pytest.raises(TargetError, match="no level of the network joins all 32 devices"):
        c.all_reduce(short, c.Group(32), MB)
