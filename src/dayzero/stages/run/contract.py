"""A record for the terminal, and what `dayzero run --json` prints."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema import LayoutRun, RunRecord
from dayzero.units import format_bytes, format_seconds

_REPEATED = {True: "yes", False: "NO", None: ""}


def to_contract(record: RunRecord) -> dict[str, Any]:
    """The first layout's run as {outputs, ranks, tokens_per_s, ttft_s, events, tiers}; `runs` has all, by layout.

    `tiers` is None where everything was held in memory.
    """
    runs = {each.layout.text: _run(each) for each in record.runs}
    return {**_run(record.runs[0]), "runs": runs, "environment": record.environment}


def overview(record: RunRecord) -> RenderableType:
    """One row for each rank, the texts of the first layout, and what deserves to be known."""
    table = Table("layout", "rank", "layers", "weights", "peak memory", "first token", "each further", "tokens/s",
                  "same bits twice", title="runs")
    for run in record.runs:
        for rank in run.ranks:
            head = rank.rank == 0
            table.add_row(
                run.layout.text if head else "", str(rank.rank), _span(rank.layers),
                format_bytes(rank.weight_bytes), format_bytes(rank.peak_private_bytes),
                *((format_seconds(run.ttft_s), format_seconds(run.tpot_s), f"{run.tokens_per_s:.1f}",
                   _REPEATED[run.repeat_identical]) if head else ("",) * 4))
    texts = [Text(f"> {each.prompt}\n{each.text} [{each.finish}]") for each in record.runs[0].outputs]
    events = [Text(f"{run.layout.text}: {event}") for run in record.runs for event in run.events]
    moved = [Text(f"{run.layout.text}: {_tiers(run)}") for run in record.runs if run.tiers]
    skipped = [Text(f"{name}: {reason}") for name, reason in record.environment.items() if name.startswith("not run")]
    return Group(table, *texts, *events, *moved, *skipped)


def _tiers(run: LayoutRun) -> str:
    """What a pass cost whose weights lie in tiers."""
    found = run.tiers
    assert found is not None
    hidden = next((each for each in run.overlap if each.category == "load"), None)
    bound = "" if found.bound_s is None else f", which {format_seconds(found.bound_s)} of reading bound from below"
    told = (f"a pass of {format_seconds(found.seconds)}{bound}, needs {format_bytes(round(found.needed_bytes))} of the "
            f"weights in tiers, {found.hit:.0%} of them in memory; {format_bytes(round(found.read_bytes))} are read, "
            f"and {format_seconds(found.stall_s)} waited for")
    return told if hidden is None else f"{told}; {hidden.share:.0%} of the time of reads is hidden"


def _span(layers: tuple[int, ...]) -> str:
    return f"{layers[0]}-{layers[-1]}" if layers else "none"


def _run(run: LayoutRun) -> dict[str, Any]:
    return {
        "layout": run.layout.text,
        "outputs": [{"prompt": each.prompt, "tokens": list(each.tokens), "text": each.text, "finish": each.finish}
                    for each in run.outputs],
        "ranks": [{"rank": each.rank, "peak_private_bytes": each.peak_private_bytes, "bytes_read": each.weight_bytes,
                   "seconds": each.load_seconds} for each in run.ranks],
        "tokens_per_s": run.tokens_per_s, "ttft_s": run.ttft_s, "tpot_s": run.tpot_s,
        "repeat_identical": run.repeat_identical, "events": list(run.events), "tiers": to_builtins(run.tiers),
        "overlap": [{**to_builtins(each), "share": each.share} for each in run.overlap],
    }  # fmt: skip
