"""Every place of the reference against the candidate and the correct runs, in one pass over its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from dayzero.errors import StoreError
from dayzero.floats import ROUNDOFF
from dayzero.progress import Progress
from dayzero.runtime.golden.values import Array

from .assemble import Grid, Known
from .flipped import Flipped, Groups
from .logits import NONE, Choices, choices
from .metrics import NOTHING, Distance, Tally, coarser
from .others import Other, common_keys
from .places import Address, Index, order_of
from .statistics import apart, sums

BLOCK = 1 << 19
"""Values that are read of each dump at a time."""
_WHOLE = "whole numbers are no measurements; a router's are compared as sets"
ABSENT = "the candidate has no such tensor"
"""`Measured.reason` where it was not recorded."""
_OTHER_ORDER = "rows have no names, and the passes another order"
_AHEAD = 4
"""Places that are worked on or wait, for each thread."""


GroupsOf = Callable[[Index], Groups]


class Seen(NamedTuple):
    """One other dump at a place of the reference."""

    clean: Distance
    """Over rows that no router flipped before, and that attend to none that one did."""
    touched: Distance
    """Over those that attend to one."""
    flipped: Distance
    """Over those that a router flipped."""
    choices: Choices
    """Of logits, over all rows."""
    clean_choices: Choices
    """Of logits, over the clean ones."""
    dtype: str
    """The coarser of both."""


class Measured(NamedTuple):
    """A place."""

    address: Address
    kind: str
    order: int
    kept: str
    """whole, sampled or statistics; empty when it was not compared."""
    dtype: str
    """The reference's."""
    seen: Seen | None
    """The candidate."""
    noise: tuple[Seen | None, ...]
    """The correct runs."""
    reason: str = ""
    """Why it was not compared."""


class Run(NamedTuple):
    """Another dump and what its routers flipped."""

    other: Other
    flipped: Flipped


def measure(reference: Known, runs: Sequence[Run], *, threads: int, progress: Progress
            ) -> Iterator[Measured]:
    """All places in the order of execution. The first of `runs` is the candidate."""
    work = sorted(reference.places, key=lambda each: order_of(reference.places[each]))
    with ThreadPoolExecutor(threads) as pool:
        waiting = []
        for number, address in enumerate(work):
            waiting.append(pool.submit(_measured, reference, runs, address))
            if len(waiting) > threads * _AHEAD:
                yield waiting.pop(0).result()
            progress.update("comparing places", number, len(work))
        for each in waiting:
            yield each.result()


def _measured(reference: Known, runs: Sequence[Run], address: Address) -> Measured:
    items = reference.places[address]
    first = items[0].entry
    order = order_of(items)
    made = Measured(address, first.kind, order, "", first.dtype, None, ())
    if items[0].place is None:
        return _by_statistics(reference, runs, made)
    if first.what == "logprobs":
        return made._replace(reason="logprobs are compared token by token")
    if first.dtype not in ROUNDOFF:
        return made._replace(reason=_WHOLE)
    try:
        theirs = reference.tensor(address)
        grids = [run.other.grid(address) for run in runs]
    except StoreError:
        return _by_statistics(reference, runs, made)
    ours = grids[0]
    why = ABSENT if ours is None else _unfit(theirs, ours)
    if why == _OTHER_ORDER:
        return _by_statistics(reference, runs, made)
    if why:
        return made._replace(reason=why)
    seen = _pass(theirs, [None if grid is not None and _unfit(theirs, grid) else grid for grid in grids],
                 [partial(run.flipped.groups, address=address, order=order) for run in runs],
                 logits=address.what == "logits", ranked=address.what == "router" and address.slot == "weights")
    sampled = len(theirs.columns) < theirs.width or items[0].entry.sample is not None
    other = runs[0].other.items(address)
    sampled |= bool(other) and other[0].entry.sample is not None
    return made._replace(kept="sampled" if sampled else "whole", seen=seen[0], noise=tuple(seen[1:]))


def _unfit(theirs: Grid, ours: Grid) -> str:
    """Why two grids cannot be compared; empty when they can."""
    if theirs.extra != ours.extra:
        return "one of the two does not say which rows it has"
    if ours.dtype not in ROUNDOFF:
        return _WHOLE
    if theirs.order != ours.order:
        return _OTHER_ORDER
    if theirs.width != ours.width:
        return f"it is {ours.width} wide and the reference's {theirs.width}"
    if not len(common_keys([theirs, ours])):
        return "the two have no rows in common"
    if not theirs.extra and not np.array_equal(theirs.keys, ours.keys):
        return "the two have another number of rows, which nothing says what they are"
    return ""


def _pass(theirs: Grid, grids: Sequence[Grid | None], groups: Sequence[GroupsOf], *, logits: bool,
          ranked: bool) -> list[Seen | None]:
    """Read the reference once and every other beside it. `ranked`: the order within a row is nobody's choice."""
    there = [grid for grid in grids if grid is not None]
    keys = common_keys([theirs, *there])
    columns = theirs.columns
    for each in there:
        columns = columns if np.array_equal(columns, each.columns) else np.intersect1d(columns, each.columns)
    asked = None if len(columns) == len(theirs.columns) else columns
    tallies = [None if grid is None else _Tallies(coarser(theirs.dtype, grid.dtype), len(columns), own, logits)
               for grid, own in zip(grids, groups, strict=True)]
    step = max(1, BLOCK // max(1, len(columns)))
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        r = _ranked(theirs.read(part, asked), ranked)
        for grid, tally in zip(grids, tallies, strict=True):
            if grid is not None and tally is not None:
                x = grid.read(part, columns if len(columns) < len(grid.columns) else None)
                tally.add(theirs.tokens(part), _ranked(x, ranked), r)
    return [None if tally is None else tally.seen() for tally in tallies]


def _ranked(values: Array, ranked: bool) -> Array:
    return np.sort(values, axis=1) if ranked else values


class _Tallies:
    """Of three groups of rows."""

    def __init__(self, dtype: str, width: int, groups: GroupsOf, logits: bool) -> None:
        self._dtype, self._groups, self._logits = dtype, groups, logits
        self._all = self._clean_only = NONE
        self._clean, self._touched, self._flipped = (Tally(dtype, width) for _ in range(3))

    def add(self, tokens: Index | None, x: Array, r: Array) -> None:
        groups = self._groups(tokens) if tokens is not None else None
        odd = groups is not None and bool(groups.flipped.any() or groups.touched.any())
        clean = ~(groups.flipped | groups.touched) if groups is not None and odd else slice(None)
        self._clean.add(x[clean], r[clean])
        if groups is not None and odd:
            self._touched.add(x[groups.touched], r[groups.touched])
            self._flipped.add(x[groups.flipped], r[groups.flipped])
        if self._logits:
            found = choices(x[clean], r[clean], None if tokens is None else tokens[clean])
            self._clean_only = self._clean_only.plus(found)
            self._all = self._all.plus(choices(x, r, tokens) if odd else found)

    def seen(self) -> Seen:
        return Seen(self._clean.distance(), self._touched.distance(), self._flipped.distance(), self._all,
                    self._clean_only, self._dtype)


def _by_statistics(reference: Known, runs: Sequence[Run], made: Measured) -> Measured:
    theirs = sums(reference.dump, reference.places[made.address])
    if theirs is None:
        return made._replace(reason="its statistics are of padding too, or of terms of a sum")
    seen: list[Seen | None] = []
    for run in runs:
        items = run.other.items(made.address)
        ours = sums(run.other.own.dump, items) if items else None
        if ours is None or ours.values + ours.lost != theirs.values + theirs.lost:
            seen.append(None)
            continue
        gap = apart(ours, theirs)
        distance = NOTHING._replace(values=ours.values, relative_l2=gap, max_abs=abs(ours.largest - theirs.largest),
                                    lost=abs(ours.lost - theirs.lost))
        seen.append(Seen(distance, NOTHING, NOTHING, NONE, NONE, coarser(made.dtype, items[0].entry.dtype)))
    if seen[0] is None:
        there = runs[0].other.items(made.address)
        return made._replace(reason="the candidate has no statistics of the same values" if there else ABSENT)
    return made._replace(kept="statistics", seen=seen[0], noise=tuple(seen[1:]))
