"""Rejected layouts by reason, each with the degrees that alone decide: `tp=24: 64 heads cannot be shared by 24`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.schema import Family, Layout, Rejected
from dayzero.schema.layout import DEGREES
from dayzero.units import format_bytes

from .pareto import Mask

NAMES = (*DEGREES, "attention_tp")
"""Degrees, as the fields of a layout."""
MEMORY = "memory-total"
"""The rule that layouts break which do not fit."""
MOST_TOGETHER = 3
"""Degrees that are looked at together."""


def families(rejected: Sequence[Rejected], layouts: Sequence[Layout]) -> tuple[Family, ...]:
    """The rejected ones by rule and message, the most frequent first. `layouts`: all that were looked at, those that
    are legal too."""
    rows = {layout: row for row, layout in enumerate(layouts)}
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in rejected:
        groups[one.rule, one.message].append(rows[one.layout])
    table = columns(layouts)
    made = []
    for (rule, message), members in groups.items():
        chosen = np.zeros(len(layouts), dtype=np.bool_)
        chosen[members] = True
        made.append(Family(degrees=deciding(table, chosen), rule=rule, message=message, layouts=int(chosen.sum()),
                           example=layouts[members[0]]))
    return tuple(sorted(made, key=lambda family: -family.layouts))


def lacking(layouts: Sequence[Layout], causes: Mapping[str, NDArray[Any]], fits: Mask, usable: int
            ) -> tuple[Family, ...]:
    """Legal layouts that do not fit, by the cause that takes most of their memory, the most frequent first; the example
    is the one that lacks least. `causes`: bytes on the fullest device by cause, a row for each layout."""
    names = list(causes)
    sizes = np.array([np.broadcast_to(causes[name], len(layouts)) for name in names])
    missing, largest = sizes.sum(axis=0) - usable, sizes.argmax(axis=0)
    table, made = columns(layouts), []
    for cause in np.unique(largest[~fits]).tolist():
        chosen = ~fits & (largest == cause)
        least, most = int(missing[chosen].min()), int(missing[chosen].max())
        between = format_bytes(least) + (f" to {format_bytes(most)}" if most > least else "")
        nearest = layouts[int(np.where(chosen, missing, np.inf).argmin())]
        made.append(Family(
            degrees=deciding(table, chosen), rule=MEMORY, layouts=int(chosen.sum()), example=nearest,
            message=f"{between} more than the {format_bytes(usable)} of a device, most of it "
                    f"{names[cause].replace('_', ' ')}"))
    return tuple(sorted(made, key=lambda family: -family.layouts))


def columns(layouts: Sequence[Layout]) -> dict[str, NDArray[Any]]:
    """Degrees by name, one row for each layout. Ranks that share attention are counted also where they are all."""
    return {name: np.array([layout.attention_degree if name == "attention_tp" else getattr(layout, name)
                            for layout in layouts], dtype=np.int64) for name in NAMES}


def deciding(table: dict[str, NDArray[Any]], chosen: Mask) -> dict[str, int]:
    """The fewest degrees which all chosen rows have in common and no other row has; empty if there are none."""
    first = int(np.flatnonzero(chosen)[0])
    for names in _subsets(tuple(name for name in table if (table[name][chosen] == table[name][first]).all())):
        alike = np.all([table[name] == table[name][first] for name in names], axis=0)
        if (alike == chosen).all():
            return {name: int(table[name][first]) for name in names}
    return {}


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for size in range(1, MOST_TOGETHER + 1):
        yield from combinations(names, size)
