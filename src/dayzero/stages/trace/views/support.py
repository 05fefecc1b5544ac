"""Coverage by backend, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dayzero.stages.trace.support import STATUSES, Support

from .columns import narrow_table, section

_FINE = ("native", "composite")


def support_tables(rows: Sequence[Support], top: int = 20) -> Group:
    """For each backend how many pairs (operator, dtype) have which status; then each pair that is not implemented by a
    kernel or by torch's code for any device, with how that is known; then the first `top` of those that are."""
    if not rows:
        return Group(Text("\ncoverage: there are no operator calls to look up"))
    names = list(dict.fromkeys(row.backend for row in rows))
    seen = [status for status in reversed(STATUSES) if any(row.status == status for row in rows)]
    totals = narrow_table(["backend"], ["pairs", *seen, "tried"])
    for name in names:
        own = [row for row in rows if row.backend == name]
        counts = Counter(row.status for row in own)
        tried = sum(bool(row.tried) for row in own)
        totals.add_row(Text(name), str(len(own)), *(f"{counts[status] or ''}" for status in seen),
                       str(tried or "none"))
    parts = [section("coverage: operators with their dtypes, by backend", totals, _legend(rows))]
    wrong, fine = ([row for row in rows if (row.status in _FINE) == good] for good in (False, True))
    if wrong:
        parts.append(section("not implemented as they are", _pairs(_together(wrong))))
    others = _together(fine)
    if others:
        left = len(others) - top
        parts.append(section("implemented: by a kernel, or by torch's code for any device", _pairs(others[:top]),
                             f"and {left} more: --json" if left > 0 else ""))
    return Group(*parts)


def _together(rows: Sequence[Support]) -> list[Support]:
    """Rows that differ in their dtype only as one."""
    groups: dict[tuple[str, ...], list[Support]] = {}
    for row in rows:
        groups.setdefault((row.op, row.backend, row.status, row.how, row.tried), []).append(row)
    return [msgspec.structs.replace(alike[0], dtype=", ".join(row.dtype for row in alike),
                                    count=sum(row.count for row in alike)) for alike in groups.values()]


def _pairs(rows: Sequence[Support]) -> Table:
    table = narrow_table(["operator and dtypes", "backend", "status", "known from"], ["calls"])
    for row in rows:
        status = f"{row.status}{', works' if row.tried == 'works' else ''}"
        what = Text.assemble((row.op, "bold"), f" {row.dtype}")
        table.add_row(what, *map(Text, (row.backend, status, row.how, f"{row.count:,}")))
    return table


def _legend(rows: Sequence[Support]) -> str:
    seen = {row.status for row in rows}
    return "; ".join(f"{status}: {meaning}" for status, meaning in reversed(STATUSES.items()) if status in seen)
