"""Which rate weights compute at, and which link a group of devices needs."""

from __future__ import annotations

import pytest

from dayzero.errors import TargetError
from dayzero.schema import Cluster, Device, Link


def device(flops: dict[str, float], links: tuple[Link, ...] = ()) -> Device:
    return Device(name="x", vendor="", arch="", memory_bytes=1, memory_bandwidth=1, flops=flops, links=links)


def link(name: str, devices: int) -> Link:
    return Link(name=name, devices=devices, bandwidth=1, latency=1, source="test")


@pytest.mark.parametrize(("scheme", "flops", "name"), [
    ("mxfp4", {"bf16": 1, "fp8": 2, "mxfp8": 2}, "bf16"),  # no 4-bit unit: weights alone are narrow
    ("nvfp4", {"bf16": 1, "fp8": 2}, "bf16"),
    ("int4", {"bf16": 1, "int8": 2}, "bf16"),
    ("int8", {"f16": 1}, "f16"),
    ("mxfp8", {"bf16": 1, "fp8": 2}, "bf16"),
    ("fp8", {"f16": 1, "mxfp4": 4}, "f16"),
    ("fp8", {"bf16": 1, "fp8": 2}, "fp8"),
    ("mxfp4", {"bf16": 1, "mxfp4": 4}, "mxfp4"),
    ("bf16", {"f32": 1, "fp8": 2}, "f32"),
    ("f32", {"bf16": 1, "f32": 3}, "f32"),
    ("f32", {"bf16": 1}, None),
    ("f64", {"f32": 1}, None),
    ("bf16", {"fp8": 2}, None),
])
def test_weights_compute_at_their_own_rate_or_in_more_bits(scheme: str, flops: dict[str, float],
                                                           name: str | None) -> None:
    assert device(flops).computes_in(scheme) == name
    if name is not None:
        assert device(flops).rate(scheme) == flops[name]
    else:
        with pytest.raises(TargetError, match=f"no rate for {scheme}"):
            device(flops).rate(scheme)


@pytest.mark.parametrize(("nodes", "group", "name"), [
    (1, 2, "board"), (1, 4, "board"), (1, 3, "node"), (1, 6, "node"), (1, 8, "node"),
    (3, 2, "board"), (3, 4, "board"), (3, 8, "node"),
    (3, 3, "network"), (3, 6, "network"), (3, 12, "network"), (3, 24, "network"),  # 6: devices 6, 7 | 8, 9, 10, 11
])
def test_a_group_takes_the_level_that_holds_all_such_groups(nodes: int, group: int, name: str) -> None:
    cluster = Cluster(device=device({"bf16": 1}, (link("board", 4), link("node", 0))), devices_per_node=8, nodes=nodes,
                      memory_utilization=0.9, network=link("network", 0))
    assert cluster.link(group).name == name


def test_a_level_that_is_not_stated_is_asked_for() -> None:
    cluster = Cluster(device=device({"bf16": 1}, (link("board", 4),)), devices_per_node=8, nodes=2,
                      memory_utilization=0.9, network=None)
    with pytest.raises(TargetError, match="no link that joins 8"):
        cluster.link(8)
    with pytest.raises(TargetError, match="network between the nodes"):
        cluster.link(6)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 0.5, 0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_rate_is_refused(value: float) -> None:
    """Divided by, such a rate gives seconds that no float holds."""
    good = {"name": "x", "vendor": "", "arch": "", "memory_bytes": 1, "memory_bandwidth": 1e9, "flops": {"bf16": 1e12}}
    for wrong in ({"memory_bandwidth": value}, {"flops": {"bf16": value}}, {"efficiency": min(value, 1e-7)}):
        with pytest.raises(TargetError, match="not a sensible number"):
            Device(**(good | wrong))
    with pytest.raises(TargetError, match="not a sensible number"):
        Link(name="x", devices=0, bandwidth=value, latency=0, source="")
