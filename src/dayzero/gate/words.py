"""A gate's result for the terminal and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema.gate import Changed, GateResult

SHOWN = 12
"""Digits of a digest."""


def to_contract(result: GateResult) -> dict[str, Any]:
    """{passed, outcome, checks, changed, baseline, stored, ...}."""
    return {"passed": result.outcome == "pass", "outcome": result.outcome, "release": result.release,
            "baseline": result.baseline or None, "stored": result.stored, "checks": result.checks,
            "changed": result.changed, "identity": result.identity, "made": result.made, "seconds": result.seconds,
            "not_noted": result.not_noted or None}


def gate_table(result: GateResult) -> RenderableType:
    """One row for each check, then what changed since the baseline."""
    table = Table("check", "outcome", "seconds", "what was seen", title=f"gate: {result.release}")
    for check in result.checks:
        where = f" (first at {check.where})" if check.where else ""
        table.add_row(check.name, check.outcome.upper() if check.outcome == "fail" else check.outcome,
                      f"{check.seconds:.1f}", check.detail + where)
    since = f"since the baseline of {result.baseline}" if result.baseline else "there was no baseline"
    lines = [Text(f"{since}: {_told(each)}") for each in result.changed]
    if result.baseline and not result.changed:
        lines = [Text(f"{since}: neither weights, files, libraries nor the machine changed")]
    last = f"{result.outcome} in {result.seconds:.0f} s" + ("; this is the baseline now" if result.stored else "")
    lines += [Text(f"not in the history: {result.not_noted}")] if result.not_noted else []
    return Group(table, *lines, Text(last))


def _told(change: Changed) -> str:
    short = change.what in ("weights", "files")
    before, after = ((each[:SHOWN] if short else each) or "none" for each in (change.before, change.after))
    return f"{change.what}: {change.name}: {before} -> {after}"
