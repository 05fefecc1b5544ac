"""Tables of the facts that dayzero ships, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from dayzero.schema import Device, Engine
from dayzero.units import format_bytes, format_rate

if TYPE_CHECKING:
    from dayzero.stages.read import Verification


def devices_table(devices: Iterable[Device]) -> Table:
    """One row for each device."""
    table = Table("device", "maker", "arch", "memory", "bandwidth", "matrix rates", "fp8", title="devices")
    for device in devices:
        rates = ", ".join(f"{scheme} {format_rate(rate, 'FLOP/s')}" for scheme, rate in device.flops.items())
        table.add_row(device.name, device.vendor, device.arch, format_bytes(device.memory_bytes),
                      format_rate(device.memory_bandwidth), rates, device.fp8 or "")
    return table


def verification_table(found: Verification) -> Table:
    """Counts as the title, and one row for each file that is not as published."""
    counts = Counter(file.status for file in found.files)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    read = f"{format_bytes(found.bytes_read)} in {found.seconds:.1f} s"
    table = Table("file", "status", "published", "here", title=f"verify: {'pass' if found.passed else 'fail'} ({told})",
                  caption=escape(f"compared with {found.origin}; read {read}"))
    for file in found.files:
        if file.status not in ("same", "unlisted"):
            table.add_row(escape(file.name), file.status, (file.expected or "")[:16], (file.actual or "")[:16])
    if not table.row_count:
        table.add_row("", "", "nothing differs", "")
    return table


def engines_table(engines: Iterable[Engine]) -> Table:
    """One row for each engine profile."""
    table = Table("engine", "version", "facts", title="engines")
    for engine in engines:
        table.add_row(engine.name, engine.version, ", ".join(sorted(engine.sources)))
    return table
