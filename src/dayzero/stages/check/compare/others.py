"""A dump seen from the reference: for each of its places, the same tensor as the other dump has it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dayzero.errors import StoreError
from dayzero.runtime.golden import Item
from dayzero.schema.comparison import NamePair

from .assemble import Assembled, Grid, Known
from .dealt import dealt_out, rejoined
from .names import NameMap, derive, shapes_of
from .places import Address, fill, layer_of, numbers, template
from .slots import Slots
from .views import Joined, Order, Sliced, Summed, find_order, match, part_columns

_CALLS = 16
"""Calls of a module in a pass of which an order is sought."""
_FAR = 0.9
"""Relative L2 above which no order of parts fits."""


class Other:
    """The candidate, or a correct run that tells the noise, against the reference."""

    def __init__(self, reference: Known, own: Known, told: tuple[NamePair, ...] = ()) -> None:
        self.own = own
        theirs, ours = shapes_of(reference.places), shapes_of(own.places)
        derived = derive(theirs, ours)
        named = {name for pair in told for name in pair.b}
        taken = {name for pair in told for name in pair.a}
        kept = [pair for pair in derived if not named & set(pair.b) and not taken & set(pair.a)]
        self.names = NameMap((*told, *kept))
        self._back = {name: pair for pair in self.names.pairs for name in pair.a}
        self.alone = {name: "only the reference has it" for name in theirs if name not in self._back}
        self.alone |= {name: "only the candidate has it" for name in ours if self.names.pair_of(name) is None}
        self.notes: list[str] = []
        self.dealt: dict[Address, int] = {}
        """Tensors that ranks hold parts of and do not say so, and along which axis."""
        self._calls: dict[tuple[str, int], dict[int, int]] = {}
        self._reference = reference
        self._slots = Slots(reference, own)
        self._order_fused()

    @property
    def told(self) -> list[str]:
        """What was noticed of names and slots."""
        return [*dict.fromkeys(self.notes), *self._slots.notes]

    def items(self, address: Address) -> list[Item]:
        """Of the same address in this dump, when one name stands for one."""
        pair = self._back.get(template(address.name))
        if pair is None or len(pair.a) > 1 or len(pair.b) > 1:
            return []
        found = self._slots.find(address, self._called(address, pair.b[0]))
        return self.own.places[found[0]] if len(found) == 1 else []

    def grid(self, address: Address) -> Grid | None:
        """The same tensor here; None when there is none. Raises StoreError when values were not kept."""
        pair = self._back.get(template(address.name))
        if pair is None:
            return None
        grids = [self._own(address, self._slots.find(address, self._called(address, name))) for name in pair.b]
        if any(grid is None for grid in grids):
            return None
        found = [grid for grid in grids if grid is not None]
        if len(pair.a) == len(pair.b) == 1 or address.what == "input":
            return found[0]
        order = Order(pair.order or tuple(range(max(len(pair.a), len(pair.b)))), pair.groups)
        if len(found) > 1:
            return Joined(found, part_columns([grid.width for grid in found], order))
        widths = self._widths(address, pair)
        if sum(widths) != found[0].width:
            return None
        return Sliced(found[0], part_columns(widths, order)[pair.a.index(template(address.name))])

    def _own(self, address: Address, addresses: Sequence[Address]) -> Grid | None:
        """The sum of these, as the reference's `address`."""
        whole = self._reference.places[address][0].entry
        for each in addresses:
            if each not in self.dealt and (axis := dealt_out(self.own.places[each], whole)) is not None:
                self.dealt[each] = axis
                self.notes.append(f"{template(each.name)} {each.what} {each.slot}: each rank of tp holds other indices "
                                  f"of axis {axis}, as its length says; put together")
        grids = [Assembled(self.own.dump, rejoined(self.own.places[each], whole, self.dealt[each])
                           if each in self.dealt else self.own.places[each]) for each in addresses]
        return Summed(grids) if len(grids) > 1 else grids[0] if grids else None

    @staticmethod
    def _address(address: Address, name: str) -> Address:
        return address._replace(name=fill(name, numbers(address.name)))

    def _called(self, address: Address, name: str) -> Address:
        """The address under its name here. A module that is called several times in a pass need not be called in the
        same order: which call is which is seen on what they gave."""
        made = self._address(address, name)
        key = (address.name, address.lap)
        if key not in self._calls:
            self._calls[key] = self._match_calls(address, made)
        return made._replace(call=self._calls[key].get(address.call, address.call))

    def _match_calls(self, address: Address, made: Address) -> dict[int, int]:
        grids = []
        for known_places, own in ((self._reference, address), (self.own, made)):
            calls = {each.call: each for each in known_places.places
                     if each.what == "output" and each == own._replace(call=each.call, what="output", slot=each.slot)}
            if not 1 < len(calls) <= _CALLS:
                return {}
            grids.append({call: known_places.tensor(each)
                          for call, each in calls.items() if known_places.places[each][0].place is not None})
        return match(*grids)

    def _widths(self, address: Address, pair: NamePair) -> list[int]:
        """Of all parts that the reference has in the place of one here."""
        parts = (self._address(address, name) for name in pair.a)
        return [self._reference.tensor(each).width if each in self._reference.places else 0 for each in parts]

    def _order_fused(self) -> None:
        """Find the order of parts on the values of the first layer that has them."""
        for pair in self.names.pairs:
            if pair.order == ():
                made = self._ordered(pair)
                pairs = tuple(made if each is pair else each for each in self.names.pairs)
                self.names = NameMap(pairs)
                self._back |= dict.fromkeys(made.a, made)

    def _ordered(self, pair: NamePair) -> NamePair:
        several, one = (pair.a, pair.b[0]) if len(pair.a) > 1 else (pair.b, pair.a[0])
        whole_side, part_side = ((self.own, self._reference) if len(pair.a) > 1 else (self._reference, self.own))
        for address in whole_side.places:
            if address.what == "output" and template(address.name) == one:
                places = [self._address(address, name) for name in several]
                if not all(each in part_side.places for each in places):
                    continue
                try:
                    whole = whole_side.tensor(address)
                    parts = [part_side.tensor(each) for each in places]
                    found, apart = find_order(whole, parts)
                except StoreError:
                    break
                if apart > _FAR:
                    self.notes.append(f"no order of {', '.join(several)} in {one} fits the values")
                return msgspec.structs.replace(pair, order=found.order, groups=found.groups,
                                               how=f"{pair.how}; order by the values of layer {layer_of(address.name)}")
        return msgspec.structs.replace(pair, order=tuple(range(len(several))))


def common_keys(grids: Sequence[Grid]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows that all have."""
    keys = grids[0].keys
    for grid in grids[1:]:
        if len(keys) != len(grid.keys) or not np.array_equal(keys, grid.keys):
            keys = np.intersect1d(keys, grid.keys)
    return keys
