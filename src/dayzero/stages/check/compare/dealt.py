"""Tensors that each rank of a group has a part of without saying so, as the heads of its attention weights: the whole
one beside them tells."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dayzero.runtime.golden import Item
from dayzero.schema.golden import Entry, Held


def dealt_out(items: Sequence[Item], whole: Entry) -> int | None:
    """The one axis, not the first, along which the whole tensor is as long as the ranks' together; None: there is none,
    or they say themselves what they hold."""
    one = items[0]
    own, degree = one.entry.shape, one.dump.layout.tp
    differ = [axis for axis in range(1, len(own)) if axis < len(whole.shape) and own[axis] != whole.shape[axis]]
    if degree == 1 or len(own) != len(whole.shape) or len(differ) != 1 or any(
            item.entry.held or item.entry.summed for item in items):
        return None
    return differ[0] if own[differ[0]] * degree == whole.shape[differ[0]] else None


def rejoined(items: Sequence[Item], whole: Entry, axis: int) -> list[Item]:
    """The items with what each holds of that axis: ranks follow each other, as heads are dealt out."""
    made = []
    for item in items:
        size, at = item.entry.shape[axis], item.dump.place.get("tp", 0)
        held = Held(axis=axis, size=whole.shape[axis], ranges=((at * size, (at + 1) * size),))
        made.append(item._replace(entry=replace(item.entry, held=(held,))))
    return made
