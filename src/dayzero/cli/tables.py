"""Tables of the facts that dayzero ships, for the terminal."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dayzero.schema import Device, Engine, to_json
from dayzero.schema.target import QuantBackend
from dayzero.units import format_bytes, format_rate

if TYPE_CHECKING:
    from dayzero.calibrate import Fitted
    from dayzero.stages.read import Verification


def devices_table(devices: Iterable[Device]) -> Table:
    """One row for each device."""
    table = Table("device", "maker", "arch", "memory", "bandwidth", "matrix rates", "fp8", title="devices")
    for device in devices:
        rates = ", ".join(f"{scheme} {format_rate(rate, 'FLOP/s')}" for scheme, rate in device.flops.items())
        table.add_row(device.name, device.vendor, device.arch, format_bytes(device.memory_bytes),
                      format_rate(device.memory_bandwidth), rates, device.fp8 or "")
    return table


def verification_table(found: Verification) -> Table | Text:
    """Counts as the title, and one row for each file that is not as published; lines alone where there is none."""
    counts = Counter(file.status for file in found.files)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    read = f"{format_bytes(found.bytes_read)} in {found.seconds:.1f} s"
    title = f"verify: {'pass' if found.passed else 'fail'} ({told})"
    caption = f"compared with {found.origin}; read {read}"
    table = Table("file", "status", "published", "here", title=title, caption=escape(caption))
    for file in found.files:
        if file.status not in ("same", "unlisted"):
            table.add_row(escape(file.name), file.status, (file.expected or "")[:16], (file.actual or "")[:16])
    return table if table.row_count else Text(f"{title}: nothing differs\n{caption}")


def engines_table(engines: Iterable[Engine]) -> Table:
    """One row for each engine profile."""
    table = Table("engine", "read at", "facts", title="engines",
                  caption="dayzero engines NAME: facts and their sources")
    for engine in engines:
        table.add_row(engine.name, engine.read_at, ", ".join(_stated(engine)))
    return table


def engine_table(engine: Engine) -> Table:
    """One row for each fact of an engine, with its source; kinds of models by the version that they came in."""
    at = f", read at {engine.read_at}" if engine.read_at else ""
    table = Table("fact", title=escape(f"{engine.name}{at}"))
    for heading in ("value", "source"):
        table.add_column(heading, overflow="fold")
    for name in _stated(engine):
        source = engine.sources[name]
        for number, text in enumerate(_lines(getattr(engine.facts, name))):
            table.add_row("" if number else name, escape(text), "" if number else escape(source))
    return table


def _lines(value: object) -> list[str]:
    """A fact as text; long ones in several lines."""
    if isinstance(value, dict):
        return _by_value(value)
    if isinstance(value, list) and value and isinstance(value[0], QuantBackend):
        return [f"{one.op}: {one.name} on {', '.join(one.archs)}" + (" (default)" if one.default else "")
                for one in value]
    return [value if isinstance(value, str) else to_json(value).decode()]


def _stated(engine: Engine) -> list[str]:
    """Names of an engine's facts."""
    return sorted(name for name in engine.sources if name != "name")


def _by_value(values: Mapping[str, object]) -> list[str]:
    """`value: keys` for each value, newest version first."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, value in values.items():
        keys[value if isinstance(value, str) else to_json(value).decode()].append(key)
    ordered = sorted(keys, key=lambda text: [int(part) for part in re.findall(r"\d+", text)], reverse=True)
    return [f"{text or 'not dated'}: {', '.join(keys[text])}" for text in ordered]


def calibration_table(found: Fitted) -> Table:
    """Mean errors before, after and on what was left out; then the factors."""
    made, told = found.calibration, "factors" if found.changed else "the shipped figures stay"
    table = Table("", "time between tokens", "time to the first token",
                  title=escape(f"{made.rows} rows of {made.source}: {told}"), caption=escape(found.reason))
    errors = made.errors
    for name in dict.fromkeys(key.split(", ")[0] for key in errors):
        table.add_row(f"mean error, {name}", *(f"{errors[f'{name}, {what}']:.1%}" for what in
                                               ("time between tokens", "time to the first token")))
    for cause, factor in made.factors.items():
        table.add_row(f"{cause} take", f"{factor:.2f} times as long", "")
    return table
