"""`dayzero pool`: which allocator needs the least memory for what a program really allocated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .app import app
from .options import AsJson, drawn_progress, show

if TYPE_CHECKING:
    from rich.table import Table

    from dayzero.runtime.replay import Replay

_KINDS = {"pool": "dayzero", "model": "model of torch's rules", "device": "torch, on the device here"}


@app.command()
def pool(
    action: Annotated[Literal["replay"], typer.Argument(
        help="replay: run a trace of allocations against dayzero's allocators and torch's.")],
    trace: Annotated[Path, typer.Argument(
        help="Trace that dayzero recorded, or torch's memory snapshot as JSON (docs/pool.md).")],
    device: Annotated[int, typer.Option("--device", min=0, help="Of a snapshot: the device whose events count.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Allocators compared on a recorded trace: memory reserved and needed, fragmentation, time (docs/pool.md)."""
    from dayzero.runtime.replay import read_trace, replay

    with drawn_progress() as progress:
        found = replay(read_trace(trace, device=device), progress=progress)
    show(lambda: found, lambda: _table(found), as_json)


def _table(found: Replay) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from dayzero.units import format_bytes, format_seconds

    events, peak = found.allocations + found.frees, format_bytes(found.peak)
    streams = f", {found.streams} streams" if found.streams > 1 else ""
    table = Table(
        "allocator", "what", "needs", "reserves", "gives back", "fragmentation", "rounding", "a call",
        title=escape(f"{found.trace}: {found.allocations} allocations{streams}, at most {peak} in use"),
        caption="needs: the least memory that serves the trace; reserves: where there is room; gives back: how often "
                "memory went back to the device with the least; fragmentation: share of it not in use at the peak")
    for one in found.results:
        table.add_row(
            escape(one.allocator), _KINDS[one.kind], format_bytes(one.needs) if one.needs else "not measured",
            format_bytes(one.reserved), str(one.releases), f"{one.fragmentation:.1%}",
            "not known" if one.rounding < 0 else f"{one.rounding:.1%}",
            format_seconds(one.seconds / events) if one.seconds else "not timed")  # fmt: skip
    return table
