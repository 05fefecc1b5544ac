"""Tables of topologies, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dayzero.schema.topology import Figure, Level, Topology
from dayzero.units import format_rate, format_seconds

WIDE = 1.0
"""Spread, (largest - smallest) / median, above which a figure is not relied on."""


def topologies_table(found: Iterable[Topology]) -> Table:
    """One row for each topology of the library."""
    table = Table("name", "device", "nodes", "levels", "all-reduce, a device", "from", title="topologies",
                  caption=escape('a target takes one with [cluster] topology = "NAME"; --show NAME has its sources'))
    table.columns[0].overflow = "fold"
    for one in found:
        levels = ", ".join(f"{level.name} {level.devices}" for level in one.levels)
        table.add_row(escape(one.name), escape(one.device), f"{one.nodes} x {one.devices_per_node}", escape(levels),
                      ", ".join(_all_reduce(level) for level in one.levels),
                      "published" if one.source else f"measured {one.date}, {escape(one.backend)}")
    return table


def _all_reduce(level: Level) -> str:
    reached = level.reached.get("all_reduce")
    return format_rate(reached.bandwidth) if reached else "not known"


def topology_table(one: Topology) -> RenderableType:
    """All that one topology says."""
    links = Table("level", "devices", "collective", "ranks", "latency of a message", "a device sends", "line off by",
                  "largest spread", title=escape(one.name))
    for level in one.levels:
        timed = {timing.collective: timing for timing in level.timings}
        for name, reached in level.reached.items():
            timing = timed.get(name)
            details = (str(timing.ranks), f"{timing.residual:.0%}", f"{max(timing.spread):.0%}") if timing else (
                "", "", "")
            latency = "not known" if reached.latency is None else format_seconds(reached.latency)
            links.add_row(escape(level.name), str(level.devices), name, details[0], latency,
                          format_rate(reached.bandwidth), *details[1:])
    rates = Table("rate", "value", "spread", "rounds")
    for figure in one.figures:
        rates.add_row(figure.name, format_rate(figure.value, figure.unit), f"{figure.spread:.0%}", str(figure.rounds))
    parts: list[RenderableType] = [links] if links.row_count else [Text(f"{one.name}: one device, no links")]
    parts += [rates] if rates.row_count else []
    parts += [Text(f"not measured: {what}: {why}", style="dim") for what, why in one.missing.items()]
    if wide := _wide(one):
        parts.append(Text(f"warning: rounds differ by more than {WIDE:.0%} of their median "
                          f"({', '.join(wide)}): something else ran on the machine; measure again when it is idle",
                          style="yellow"))
    parts.append(Text(_about(one), style="dim"))
    return Group(*parts)


def _wide(one: Topology) -> list[str]:
    """What was timed with too wide a spread to be relied on."""
    links = [f"{timing.collective} among {level.devices}" for level in one.levels for timing in level.timings
             if max(timing.spread) > WIDE]
    return [*links, *(figure.name for figure in one.figures if figure.spread > WIDE)]


def _about(one: Topology) -> str:
    if one.source:
        return f"published: {one.source}"
    facts = ", ".join(f"{name} {value}" for name, value in one.environment.items())
    return f"measured {one.date} in {one.seconds:.0f} s with {one.backend}: {facts}"


def compared_table(one: Topology, other: Topology) -> RenderableType:
    """Every figure that both have, and how the first stands to the second; that there is none."""
    table = Table("what", escape(one.name), escape(other.name), "ratio", title="comparison")
    known = {what: (text, value) for what, text, value in _figures(other)}
    for what, text, value in _figures(one):
        if what in known:
            table.add_row(what, text, known[what][0], f"{value / known[what][1]:.2f}")
    return table if table.row_count else Text(f"{one.name} and {other.name} have no figure in common: levels are "
                                              "compared that join the same number of devices")


def _figures(one: Topology) -> Iterator[tuple[str, str, float]]:
    """(what, value as text, value) of all figures."""
    for level in one.levels:
        for name, reached in level.reached.items():
            what = f"{name} among {level.devices}"
            yield f"{what}, bandwidth", format_rate(reached.bandwidth), reached.bandwidth
            if reached.latency:
                yield f"{what}, latency", format_seconds(reached.latency), reached.latency
    for figure in one.figures:
        yield figure.name, _rate(figure), figure.value


def _rate(figure: Figure) -> str:
    return format_rate(figure.value, figure.unit)
