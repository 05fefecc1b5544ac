"""How long the probes take and how far their figures move from call to call: `bench_probe.py [CALLS]`.

The plan's prediction for a local run is as good as the figures of the host probe are steady; on an idle machine
bandwidth, overhead and matrix rates should lie within some percent of each other. `dayzero probe` measures each
collective on its own; its figures move with what else the machine does.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from dayzero.backends import host, measure_host
from dayzero.runtime.probe import Wish, probe
from dayzero.schema import Device
from dayzero.schema.topology import Topology

RANKS = 2


def figures(device: Device, seconds: float) -> dict[str, float]:
    """Name with unit -> value."""
    (link,) = device.links
    return {"probe, s": seconds, "memory bandwidth, GB/s": device.memory_bandwidth / 1e9,
            "bf16, GFLOP/s": device.flops["bf16"] / 1e9, "f32, GFLOP/s": device.flops["f32"] / 1e9,
            "operator overhead, us": (device.op_overhead or 0.0) * 1e6, "loopback latency, us": link.latency * 1e6,
            "loopback bandwidth, GB/s": link.bandwidth / 1e9, "process, MiB": device.process_bytes / 2**20}  # fmt: skip


def links(topology: Topology) -> dict[str, float]:
    """The same of what `dayzero probe` measured."""
    found = {"dayzero probe, s": topology.seconds}
    for level in topology.levels:
        for name, reached in level.reached.items():
            found[f"{name} latency, us"] = (reached.latency or 0.0) * 1e6
            found[f"{name} bandwidth, GB/s"] = reached.bandwidth / 1e9
    return found


def main(calls: int) -> None:
    """Print median, smallest and largest of every figure over so many probes."""
    rows = []
    for _ in range(calls):
        start = time.perf_counter()
        device = measure_host(RANKS)
        row = figures(device, time.perf_counter() - start)
        rows.append(row | (links(probe(Wish(seconds=5.0), RANKS)) if host.cores() >= RANKS else {}))
    print(f"{RANKS} ranks, {calls} probes{'':14} {'median':>10} {'smallest':>10} {'largest':>10}")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:32} {median(values):10.2f} {min(values):10.2f} {max(values):10.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
