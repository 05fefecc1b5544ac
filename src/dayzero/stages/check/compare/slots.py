"""Tensors of other code under the reference's slots: arguments have other names, and a layer may hand its residual on
apart, so that two tensors together are what the reference has. Found by widths and values, not by who wrote the code.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dayzero.errors import StoreError

from .assemble import Assembled, Known
from .metrics import relative
from .places import Address, Places, fill, numbers, template
from .views import Summed

_ROWS = 32
_FAR = 0.9
"""Relative L2 above which a tensor of another name is not the same."""
_NEARER = 0.8
"""Two terms are taken when they are nearer than this share of the distance of the nearest one."""
_SUM = 2.0**-7
"""Relative L2 of a sum in the coarsest precision that engines add in, and of one in f32."""
_TERMS = 6
"""Tensors of a call of which sums are tried."""
Tensors = dict[Address, list[Address]]


class Slots:
    """Of a dump against the reference's."""

    def __init__(self, reference: Known, own: Known) -> None:
        self._reference, self._own = reference, own
        self._theirs, self._ours = _by_call(reference.places), _by_call(own.places)
        self._chosen: dict[tuple[str, str, str, tuple[str, ...]], tuple[str, ...]] = {}
        self.notes: dict[str, None] = {}

    def find(self, address: Address, made: Address) -> tuple[Address, ...]:
        """Those whose sum is the reference's `address`; `made`: the same under this dump's name of the module. Empty:
        there is none."""
        theirs, ours = self._theirs.get(_call(address), []), self._ours.get(_call(made), [])
        if self._holds_more(address, made):
            return ()
        if address.what == "router" and address.slot == "scores" and not ours:
            made = made._replace(what="output", slot="0")
            ours = self._ours.get(_call(made), [])
        elif {each.slot for each in theirs} == {each.slot for each in ours} or address.what not in ("input", "output"):
            return (made,) if made in self._own.places else ()
        elif len(theirs) == len(ours) == 1:
            return tuple(ours)
        slots = tuple(each.slot for each in ours)
        key = template(address.name), address.what, address.slot, slots
        if ours and key not in self._chosen:
            self._chosen[key] = self._choose(*self._first(address, made, slots))
            self._note(address, made, self._chosen[key])
        return tuple(each for each in ours if each.slot in self._chosen.get(key, ()))

    def _first(self, address: Address, made: Address, slots: tuple[str, ...]) -> tuple[Address, list[Address]]:
        """Of all layers the first: what goes wrong grows with the layers."""
        for call, each in self._ours.items():
            alike = call == _call(made)._replace(name=call.name) and template(call.name) == template(made.name)
            if alike and tuple(one.slot for one in each) == slots:
                known = address._replace(name=fill(template(address.name), numbers(call.name)))
                if known in self._reference.places:
                    return known, each
        return address, self._ours.get(_call(made), [])

    def _choose(self, address: Address, ours: list[Address]) -> tuple[str, ...]:
        """Slots of the tensor, or of the two, that are nearest in their values."""
        try:
            truth = self._reference.tensor(address)
            grids = {each: self._own.tensor(each) for each in ours[:_TERMS]}
        except StoreError:
            return tuple(each.slot for each in ours if each.slot == address.slot)
        fitting = {each: grid for each, grid in grids.items() if grid.width == truth.width}
        ones = {(each.slot,): _apart(truth, grid) for each, grid in fitting.items()}
        twos = {(one.slot, other.slot): _apart(truth, Summed((grids[one], grids[other])))
                for one, other in combinations(fitting, 2)}
        if not ones:
            return ()
        for pair in twos:
            if self._added_inside(ours[0], {each.slot: grid for each, grid in fitting.items() if each.slot in pair}):
                return pair
        best = min(ones, key=lambda each: ones[each])
        two = min(twos, key=lambda each: twos[each], default=())
        if two and twos[two] < _NEARER * ones[best]:
            return two
        own = (address.slot,)
        if own in ones and _NEARER * ones[own] <= ones[best]:
            return own
        return best if ones[best] < _FAR else ()

    def _added_inside(self, address: Address, terms: dict[str, Assembled]) -> bool:
        """Whether a module that takes these terms gives their sum, among other things: norms of engines do."""
        if address.what != "input":
            return False
        total = Summed(tuple(terms.values()))
        given = [self._own.tensor(each) for each in self._ours.get(_call(address._replace(what="output")), [])]
        return any(each.width == total.width and _apart(each, total) < _SUM for each in given)

    def _holds_more(self, address: Address, made: Address) -> bool:
        """Whether a module gives what its parent gives, to the last bit, here and not in the reference: what the
        reference's parent adds to it is in it already."""
        around = _call(made)._replace(name=made.name.rpartition(".")[0])
        if address.what != "output" or len(self._ours.get(around, ())) != 1:
            return False
        (theirs, whole), (ours, everything) = _digests(address, self._reference), _digests(made, self._own)
        more = bool(ours and theirs and whole) and ours == everything and theirs != whole
        if more:
            self.notes[f"{template(address.name)} output: the candidate's gives all that the module around it gives, "
                       "the reference's only a part: compared there"] = None
        return more

    def _note(self, address: Address, made: Address, slots: tuple[str, ...]) -> None:
        if len(slots) > 1:
            where = template(address.name) or "the model"
            self.notes[f"{where} {address.what}: the candidate hands the residual on apart, "
                       f"{' + '.join(slots)} together are compared"] = None


def _apart(truth: Assembled, grid: Assembled | Summed) -> float:
    keys = np.intersect1d(truth.keys, grid.keys)
    keys = keys[keys >= 0][:: max(1, len(keys) // _ROWS)]
    if not len(keys) or not np.array_equal(truth.columns, grid.columns):
        return float("inf")
    r, x = truth.read(keys).astype(np.float64), grid.read(keys).astype(np.float64)
    return relative(float(((x - r) ** 2).sum()), float((r**2).sum()))


def _digests(address: Address, side: Known) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of what an address holds, and of what the module around it has under the same slot; empty: nothing."""
    around = address._replace(name=address.name.rpartition(".")[0])
    own, parent = (tuple(item.entry.digest for item in side.places.get(each, ())) for each in (address, around))
    return own, parent


def _call(address: Address) -> Address:
    return address._replace(slot="")


def _by_call(places: Places) -> Tensors:
    """{call of a module and which side of it: its tensors}"""
    found: Tensors = {}
    for address in places:
        found.setdefault(_call(address), []).append(address)
    return found
