"""Rows that took other experts, from which router on: found before anything is judged."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import StoreError
from dayzero.runtime.golden import Item
from dayzero.runtime.golden.values import INTEGERS, Array

from .assemble import Grid, Known, Ragged
from .metrics import coarser
from .others import Other, common_keys
from .pieces import split_key
from .places import Address, Index, order_of
from .routers import Flips, flips

_ROWS = 8192
_EMPTY = np.empty(0, np.int64)


class Router(NamedTuple):
    """Where decisions lie in the reference: a router's, or whole numbers that another module gives for every token."""

    name: str
    order: int
    """What ran later may have been decided by it."""
    indices: Address
    scores: Address | None
    """None: they were not recorded."""


class Decisions(NamedTuple):
    """One router of another dump against the reference's, over rows that no earlier router flipped."""

    router: Router
    rows: int
    """Rows that are judged: those that attend to flipped ones are not."""
    keys: Index
    """Rows whose sets differ, judged or not."""
    gap: NDArray[np.float64]
    """As `Flips.gap`, of each that is judged."""
    overlap: float
    moved: float
    """Largest difference of a score."""
    rms: float
    """Root mean square of the reference's scores."""


class Groups(NamedTuple):
    """Which rows are what."""

    flipped: NDArray[np.bool_]
    """After a flip of their own."""
    touched: NDArray[np.bool_]
    """Those that are not, and attend to one that is."""


class Flipped:
    """Rows after a flip, growing with the order of execution, and rows that attend to those.

    `attention`: where in the order of execution attention begins; between a flip and the next of these no other row
    can have seen it. Rows are taken to see only what is before them in their sequence. `unseen`: the reference's first
    router of which the other dump does not say what it chose; any row may have taken other experts from there on.
    """

    def __init__(self, decisions: list[Decisions], attention: Sequence[int], unseen: Router | None = None) -> None:
        self.decisions, self.unseen, self._attention = decisions, unseen, sorted(attention)
        self._own = {each.router.name: each.router.order for each in decisions}
        self._orders: list[int] = []
        self._keys: list[Index] = []
        keys = _EMPTY
        for each in decisions:
            if len(each.keys):
                keys = np.union1d(keys, each.keys)
                self._orders.append(each.router.order)
                self._keys.append(keys)

    def before(self, order: int) -> Index:
        """Rows that a router flipped that ran before a place, or at it."""
        at = int(np.searchsorted(self._orders, order, side="right"))
        return self._keys[at - 1] if at else _EMPTY

    def groups(self, tokens: Index, address: Address, order: int) -> Groups:
        """Of a place, whose rows are of these (sequence, position)."""
        own = self._own.get(address.name, order) if address.what == "router" else order
        scores = (address.what, address.slot) == ("router", "scores")  # they come before their router's choice
        gone = self.before(own - 1 if scores else own)
        flipped = np.isin(tokens, gone) if len(gone) else np.zeros(len(tokens), bool)
        if self.unseen is not None and own > self.unseen.order:
            return Groups(flipped, ~flipped)
        first = self._first_seen(own)
        if not len(first[0]):
            return Groups(flipped, np.zeros(len(tokens), bool))
        sequence, position = split_key(tokens)
        at = np.minimum(np.searchsorted(first[0], sequence), len(first[0]) - 1)
        return Groups(flipped, (first[0][at] == sequence) & (position > first[1][at]) & ~flipped)

    def _first_seen(self, order: int) -> tuple[Index, Index]:
        """(sequences, the first position in each) of flips that attention has seen before a place."""
        last = int(np.searchsorted(self._attention, order, side="right"))
        seen = self.before(self._attention[last - 1] - 1) if last else _EMPTY if self._attention else self.before(order)
        sequence, position = split_key(seen)
        sequences, starts = np.unique(sequence, return_index=True)
        return sequences, position[starts]  # keys rise, so the first of a sequence is its smallest position


def routers_of(reference: Known) -> list[Router]:
    """All routers in the order of execution, and what else decides by whole numbers: what a module gives of these is
    chosen inside of it, so what ran there may have been decided by it."""
    found, begun = [], dict[str, int]()
    inner = {address.name for address, items in reference.places.items() if _decides(address, items)}
    for address, items in reference.places.items():
        order = order_of(items)
        begun[address.name] = min(order, begun.get(address.name, order))
        if address.what == "router" and address.slot == "indices":
            scores = address._replace(slot="scores")
            found.append(Router(address.name, order, address, scores if scores in reference.places else None))
        elif _decides(address, items) and not any(name.startswith(f"{address.name}.") for name in inner):
            found.append(Router(address.name, begun[address.name], address, None))
    return sorted(found, key=lambda each: each.order)


def _decides(address: Address, items: Sequence[Item]) -> bool:
    """Whether it is sets of whole numbers, one for each token, that a module gives."""
    entry = items[0].entry
    return (address.what == "output" and entry.dtype in INTEGERS and len(entry.shape) > 1 and entry.axes[0] == "token"
            and items[0].place is not None)


def decisions_of(reference: Known, other: Other, routers: list[Router]) -> Flipped:
    """All routers of another dump that can be compared."""
    attention = [order_of(items) for address, items in reference.places.items()
                 if items[0].entry.kind == "attention" and address.what == "input"]
    state = Flipped([], attention)
    for router in routers:
        try:
            found = _decisions(reference, other, router, state)
        except StoreError:  # no values were kept
            found = None
        if found is not None:
            state = Flipped([*state.decisions, found], attention, state.unseen)
        elif router.indices.what == "router" and state.unseen is None:
            state = Flipped(state.decisions, attention, router)
    return state


class _Grids(NamedTuple):
    """A router's choices and scores in both; no scores: they cannot be compared."""

    choices: list[Ragged]
    scores: list[Grid]
    dtype: str


def _grids(reference: Known, other: Other, router: Router) -> _Grids | None:
    items = other.items(router.indices)
    if not items:
        return None
    theirs = Ragged(reference.dump, reference.places[router.indices])
    ours = Ragged(other.own.dump, items)
    found = [] if router.scores is None else [reference.tensor(router.scores), other.grid(router.scores)]
    scores = [each for each in found if each is not None and len(each.columns) == each.width]
    usable = len(scores) == 2 and scores[0].width == scores[1].width
    dtype = coarser(*(each.dtype for each in scores)) if usable else "F32"
    return _Grids([theirs, ours], scores if usable else [], dtype)


def _decisions(reference: Known, other: Other, router: Router, state: Flipped) -> Decisions | None:
    grids = _grids(reference, other, router)
    if grids is None:
        return None
    keys = common_keys([*grids.choices, *grids.scores])
    groups = state.groups(keys, router.indices, router.order - 1)
    judged = _judged(grids, router, keys[~groups.flipped & ~groups.touched])
    beside = keys[groups.touched]
    also = [beside[start + _found(grids, router, beside[start : start + _ROWS]).rows]
            for start in range(0, len(beside), _ROWS)]
    return judged._replace(keys=np.union1d(judged.keys, np.concatenate([_EMPTY, *also])))


def _judged(grids: _Grids, router: Router, keys: Index) -> Decisions:
    hit, gaps = [_EMPTY], [np.empty(0)]
    overlap = moved = square = 0.0
    for start in range(0, len(keys), _ROWS):
        part = keys[start : start + _ROWS]
        found = _found(grids, router, part)
        hit.append(part[found.rows])
        gaps.append(found.gap)
        overlap += found.overlap * len(part)
        if grids.scores:
            old, new = (each.read(part).astype(np.float64) for each in grids.scores)
            with np.errstate(invalid="ignore", over="ignore"):
                moved = max(moved, float(np.nan_to_num(np.abs(new - old), nan=np.inf).max(initial=0.0)))
                square += float((old**2).sum())
    count = len(keys) * (grids.scores[0].width if grids.scores else 0)
    return Decisions(router, len(keys), np.concatenate(hit), np.concatenate(gaps),
                     overlap / len(keys) if len(keys) else 1.0, moved, sqrt(square / count) if count else 0.0)


def _found(grids: _Grids, router: Router, keys: Index) -> Flips:
    old, new = (each.read(keys) for each in grids.scores) if grids.scores else (None, None)
    theirs, ours = (_past(each, keys, router) for each in grids.choices)
    return flips(theirs, ours, old, new, grids.dtype)


def _past(grid: Ragged, keys: Index, router: Router) -> Array:
    """What was chosen; of positions, without those that are still to come, which a causal mask takes out of every
    choice, and without padding."""
    chosen = grid.read(keys)
    if router.indices.what == "router":
        return chosen
    sequence, position = (each[:, None] for each in split_key(keys))
    chosen = chosen - np.vectorize(lambda number: grid.before.get(number, 0), otypes=[np.int64])(sequence)
    return np.where(chosen > position, -1, chosen)
