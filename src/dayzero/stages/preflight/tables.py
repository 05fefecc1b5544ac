"""Findings and rules as tables for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from dayzero.schema import Findings

from .rule import RULES

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def findings_table(found: Findings) -> Table:
    """One row for each finding, and the verdict as the title."""
    table = Table("severity", "rule", "subject", "what and what to do", title=f"preflight: {found.verdict}")
    for finding in found.findings:
        style = _STYLES[finding.severity]
        table.add_row(f"[{style}]{finding.severity}[/]", finding.rule, escape(finding.subject),
                      f"{escape(finding.message)}\n[dim]{escape(finding.hint)}[/]")
    if not found.findings:
        table.add_row("", "", "", "nothing found")
    return table


def rules_table() -> Table:
    """One row for each rule."""
    table = Table("rule", "severity", "what it sees", title="preflight rules")
    for rule in RULES:
        table.add_row(rule.name, rule.severity, escape(rule.what))
    return table
