"""Coverage by backend, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dayzero.stages.trace.support import STATUSES, Support

from .columns import narrow_table, section

_FINE = ("native", "composite")


def support_tables(rows: Sequence[Support], top: int = 20) -> Group:
    """For each backend how many pairs (operator, dtype) have which status; then each pair that is not implemented by a
    kernel or by torch's code for any device, with how that is known; then the first `top` of the others."""
    names = list(dict.fromkeys(row.backend for row in rows))
    totals = narrow_table(["backend"], ["pairs", *reversed(STATUSES), "tried"])
    for name in names:
        own = [row for row in rows if row.backend == name]
        counts = Counter(row.status for row in own)
        tried = sum(bool(row.tried) for row in own)
        totals.add_row(Text(name), str(len(own)), *(f"{counts[status] or ''}" for status in reversed(STATUSES)),
                       str(tried or "none"))
    parts = [section("coverage: operators with their dtypes, by backend", totals, _legend(rows))]
    wrong, fine = ([row for row in rows if (row.status in _FINE) == good] for good in (False, True))
    if wrong:
        parts.append(section("not implemented as they are", _pairs(wrong)))
    if fine[:top]:
        left = len(fine) - top
        parts.append(section("the others", _pairs(fine[:top]), f"and {left} more: --json" if left > 0 else ""))
    return Group(*parts)


def _pairs(rows: Sequence[Support]) -> Table:
    table = narrow_table(["operator", "dtype", "backend", "status", "known from"], ["calls"])
    for row in rows:
        status = f"{row.status}{', works' if row.tried == 'works' else ''}"
        table.add_row(*map(Text, (row.op, row.dtype, row.backend, status, row.how, f"{row.count:,}")))
    return table


def _legend(rows: Sequence[Support]) -> str:
    seen = {row.status for row in rows}
    return "; ".join(f"{status}: {meaning}" for status, meaning in reversed(STATUSES.items()) if status in seen)
