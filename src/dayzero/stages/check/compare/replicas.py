"""What ranks hold alike and computed apart: whether they agree."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from dayzero.errors import StoreError
from dayzero.schema import Check
from dayzero.stages.check.measure import FAR, judged

from .assemble import Known, read_piece
from .metrics import Tally, coarser
from .pieces import Piece
from .places import Address, Index

_STEP = 1 << 19


class Disagreement(NamedTuple):
    """Two ranks that hold the same rows and columns of a tensor, and not the same bytes."""

    address: Address
    ranks: tuple[int, int]
    relative_l2: float


def disagreements(own: Known, dealt: Container[Address] = ()) -> tuple[list[Disagreement], int]:
    """(pairs of ranks that differ, addresses that several ranks hold). What has the same digest is not read; `dealt`:
    what ranks hold different parts of."""
    found, shared = list[Disagreement](), 0
    if len(own.dump.ranks) == 1:
        return found, shared
    for address in (each for each in own.places if each not in dealt):
        try:
            whole = own.tensor(address)
        except StoreError:  # without values, or told where the place is compared
            continue
        shared += whole.has_replicas
        for one, other, keys in whole.replicas:
            found.append(Disagreement(address, (one.item.dump.rank, other.item.dump.rank),
                                      _apart(one, other, keys)))
    return found, shared


def _apart(one: Piece, other: Piece, keys: Index) -> float:
    """Relative L2 of the second against the first."""
    width = max(1, len(one.columns))
    tally, step = Tally(coarser(one.item.entry.dtype, other.item.entry.dtype), len(one.columns)), max(1, _STEP // width)
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        x, r = read_piece(other, part), read_piece(one, part)
        if x.dtype.kind != "f":
            x, r = x.astype(float), r.astype(float)
        tally.add(x, r)
    return tally.distance().relative_l2


def replica_checks(found: list[Disagreement], shared: int, tolerances: Mapping[Address, tuple[float, str]]
                   ) -> list[Check]:
    """One for every pair that differs, and one for all that are the same."""
    made = []
    for each in found:
        tolerance, source = tolerances.get(each.address, (0.0, "no tolerance is known here: bytes must be equal"))
        made.append(judged(f"{each.address.label}, ranks {each.ranks[0]} and {each.ranks[1]} disagree",
                           each.relative_l2, tolerance, source, "copies of the same rows and columns"))
    if shared:
        lost, apart = (len({each.address for each in some}) for some in (
            [each for each in found if each.relative_l2 == FAR], found))
        made.append(judged("copies that ranks hold and that are no numbers in one only", float(lost), 0.0,
                           "ranks that hold the same must agree",
                           f"{shared} places are held by several ranks, {apart} of them not bit for bit alike"))
    return made
