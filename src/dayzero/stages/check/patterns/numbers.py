"""Values that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dayzero.schema.located import Pattern

from .facts import Difference, Facts
from .subsets import told


def numbers(difference: Difference, facts: Facts) -> Iterator[Pattern]:
    """Cells that are NaN or infinite where the reference is not: worse than any other error."""
    count = int(difference.odd.sum())
    if not count:
        return
    rows, columns = np.nonzero(difference.odd)
    every_row, every_column = np.unique(rows), np.unique(columns)
    where = f"{count} of {difference.odd.size} values are NaN or infinite"
    if count == 1:
        at = f" (position {int(facts.positions[rows[0]])})" if facts.positions is not None else ""
        where += f": row {int(rows[0])}{at}, channel {int(columns[0])}"
    elif len(every_row) < len(difference.d):
        where += f": in rows {told(every_row.tolist())}"
    elif len(every_column) < difference.width:
        where += f": in channels {told(every_column.tolist())}"
    yield Pattern(name="no numbers", explained=1.0, words=f"{where}: an overflow, a division by zero, or memory that "
                  "nobody wrote")
