"""A topology as a probe of two nodes would file it."""

from __future__ import annotations

from dayzero.runtime.probe.compose import named
from dayzero.schema import COLLECTIVES, Reached
from dayzero.schema.topology import Figure, Level, Timing, Topology


def timing(collective: str) -> Timing:
    return Timing(collective=collective, ranks=8, groups=2, sizes=(1024, 1048576), seconds=(1e-5, 2e-5),
                  spread=(0.1, 0.2), rounds=5, residual=0.05)


def level(name: str, devices: int, bandwidth: float, latency: float) -> Level:
    return Level(name=name, devices=devices, timings=tuple(map(timing, COLLECTIVES)),
                 reached={each: Reached(latency=latency, bandwidth=bandwidth) for each in COLLECTIVES})


def measured(device: str = "h200", nodes: int = 2, node: int = 8, date: str = "2026-01-02",
             network: str = "infiniband") -> Topology:
    """Of `nodes` nodes of `node` devices: 360 GB/s and 3 us inside, 40 GB/s and 12 us between."""
    levels = [level("node", node, 360e9, 3e-6)]
    if nodes > 1:
        levels.append(level(network, nodes * node, 40e9, 12e-6))
    figures = (Figure(name="host_to_device.pinned", value=5.2e10, unit="B/s", spread=0.1, rounds=40),
               Figure(name="disk_read.cold", value=6e9, unit="B/s", spread=0.1, rounds=3))
    return named(Topology(name="", device=device, devices_per_node=node, nodes=nodes, network=network, backend="b",
                          date=date, levels=tuple(levels), figures=figures, environment={"torch": "2"}, seconds=9.0))
