"""Tables that stay readable at 80 columns, and counts as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

_PARTS = 5
"""Stretches of numbers that are told."""


def narrow_table(left: Sequence[str], right: Sequence[str]) -> Table:
    """A table without frame; columns of `right` hold numbers and do not wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def section(title: str, table: Table, caption: str = "") -> Group:
    """A table below its title, which may be wider, and above what there is to say about it."""
    return Group(Text(f"\n{title}", "bold"), table, *([Text(caption, "dim")] if caption else []))


def flop(count: float) -> str:
    """Operations with three figures, the unit being the column's: `112 T`; empty for none."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E")) if count else ""


def size(count: float) -> str:
    """Bytes with three figures: `852 Gi`; empty for none."""
    return _scaled(count, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi")) if count else ""


def _scaled(value: float, step: int, names: Sequence[str]) -> str:
    index = 0
    while value >= step * 0.9995 and index < len(names) - 1:
        value, index = value / step, index + 1
    digits = f"{value:.0f}" if value >= 100 or (not index and value == int(value)) else f"{value:.3g}"
    return f"{digits} {names[index]}".rstrip()


def number(count: float) -> str:
    """A count: whole, or with one decimal where it is a mean."""
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"


def ratio(value: float | None) -> str:
    """Operations for each byte."""
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def ranges(indices: Sequence[int]) -> str:
    """`0, 3-60`; of many stretches the first and the last."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    told = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts]
    if len(told) <= _PARTS:
        return ", ".join(told)
    return _stepped(sorted(indices)) or ", ".join([*told[:_PARTS - 2], "...", told[-1]])


def _stepped(indices: Sequence[int]) -> str:
    """`3-91 by 4` for indices at one distance; empty for others."""
    steps = {after - before for before, after in pairwise(indices)}
    return f"{indices[0]}-{indices[-1]} by {steps.pop()}" if len(steps) == 1 else ""
