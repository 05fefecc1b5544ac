"""How long the host probe takes and how far its figures move from call to call: `bench_probe.py [CALLS]`.

The plan's prediction for a local run is as good as these figures are steady; on an idle machine bandwidth, overhead and
matrix rates should lie within some percent of each other.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from dayzero.backends import measure_host
from dayzero.schema import Device

RANKS = 2


def figures(device: Device, seconds: float) -> dict[str, float]:
    """Name with unit -> value."""
    (link,) = device.links
    return {"probe, s": seconds, "memory bandwidth, GB/s": device.memory_bandwidth / 1e9,
            "bf16, GFLOP/s": device.flops["bf16"] / 1e9, "f32, GFLOP/s": device.flops["f32"] / 1e9,
            "operator overhead, us": (device.op_overhead or 0.0) * 1e6, "loopback latency, us": link.latency * 1e6,
            "loopback bandwidth, GB/s": link.bandwidth / 1e9, "process, MiB": device.process_bytes / 2**20}  # fmt: skip


def main(calls: int) -> None:
    """Print median, smallest and largest of every figure over so many probes."""
    rows = []
    for _ in range(calls):
        start = time.perf_counter()
        device = measure_host(RANKS)
        rows.append(figures(device, time.perf_counter() - start))
    print(f"{RANKS} ranks, {calls} probes{'':14} {'median':>10} {'smallest':>10} {'largest':>10}")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:32} {median(values):10.2f} {min(values):10.2f} {max(values):10.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
