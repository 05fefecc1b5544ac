"""Tables of the facts that dayzero ships, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from dayzero.schema import Device, Engine
from dayzero.units import format_bytes, format_rate


def devices_table(devices: Iterable[Device]) -> Table:
    """One row for each device."""
    table = Table("device", "maker", "arch", "memory", "bandwidth", "matrix rates", "fp8", title="devices")
    for device in devices:
        rates = ", ".join(f"{scheme} {format_rate(rate, 'FLOP/s')}" for scheme, rate in device.flops.items())
        table.add_row(device.name, device.vendor, device.arch, format_bytes(device.memory_bytes),
                      format_rate(device.memory_bandwidth), rates, device.fp8 or "")
    return table


def engines_table(engines: Iterable[Engine]) -> Table:
    """One row for each engine profile."""
    table = Table("engine", "version", "facts", title="engines")
    for engine in engines:
        table.add_row(engine.name, engine.version, ", ".join(sorted(engine.sources)))
    return table
