"""What a dump holds, as addresses: a tensor of a module, whoever of the ranks recorded it in whichever passes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dayzero.runtime.golden import Dump, Item
from dayzero.schema.golden import PADDING, Pass

_STAGE = 40
"""Bits of the order on a rank."""
Index = NDArray[np.int64]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


class Address(NamedTuple):
    """A tensor, apart from who computed which part of it when."""

    name: str
    """Path of the module, or of a parameter its own."""
    what: str
    """As `Entry.what`."""
    slot: str
    """As `Entry.slot`."""
    call: int
    """As `Entry.call`."""
    lap: int
    """How often the same rows had been computed before: the second step of a training is lap 1."""

    @property
    def label(self) -> str:
        """For people."""
        again = f", call {self.call + 1}" if self.call else ""
        again += f", pass {self.lap + 1} over the same rows" if self.lap else ""
        slot = f" {self.slot}" if self.slot and self.slot != "0" else ""
        return f"{self.name or 'the model'} {self.what}{slot}{again}"


Places = dict[Address, list[Item]]
"""Items of an address in the order of their ranks and passes; addresses in the order of execution."""


def places_of(dump: Dump) -> Places:
    """Every address of a dump."""
    laps = {rank: _laps(passes) for rank, passes in dump.passes.items()}
    absent = stand_ins(dump)
    shift = stage_offsets(dump, absent)
    found: Places = {}
    present = [each for each in dump.items if _stage(each) not in absent and each.entry.what != "parameter"]
    for item in sorted(present, key=lambda each: (each.dump.place.get("pp", 0), each.entry.pass_no, each.entry.order,
                                                  each.dump.rank)):
        entry = item.entry
        name = renumbered(entry.name, shift.get(item.dump.place.get("pp", 0), {}))
        lap = laps[item.dump.rank][entry.pass_no]
        found.setdefault(Address(name, entry.what, entry.slot, entry.call, lap), []).append(item)
    return found


def order_of(items: Iterable[Item]) -> int:
    """Place in the order of execution of the whole model: ranks count on their own, and stages run one after another.
    """
    return min(item.dump.place.get("pp", 0) << _STAGE | item.entry.order for item in items)


def template(name: str) -> str:
    """A path with `*` for every number in it: the same for all layers."""
    return _NUMBER.sub("*", name)


def numbers(name: str) -> tuple[int, ...]:
    """The numbers in a path."""
    return tuple(int(each) for each in _NUMBER.findall(name))


def fill(pattern: str, values: Iterable[int]) -> str:
    """Inverse of `template` and `numbers`."""
    left = iter(values)
    return re.sub(r"\*", lambda _: str(next(left)), pattern)


def layer_of(name: str) -> int | None:
    """First number of a path: of the layer, wherever models are lists of layers."""
    found = numbers(name)
    return found[0] if found else None


def renumbered(name: str, shift: Mapping[str, int]) -> str:
    """The path with its first number moved by what belongs to what stands before it."""
    match = _NUMBER.search(name)
    if match is None or not (by := shift.get(name[: match.start()], 0)):
        return name
    return f"{name[: match.start()]}{int(match[0]) + by}{name[match.end():]}"


def _stage(item: Item) -> tuple[int, str]:
    """(pipeline stage, path)."""
    return item.dump.place.get("pp", 0), item.entry.name


def stand_ins(dump: Dump) -> set[tuple[int, str]]:
    """(pipeline stage, path) of what only stands for a module of another stage: of several classes at one path, it is
    not the one with most modules inside, and stands for modules of many kinds."""
    classes: dict[str, dict[int, str]] = {}
    kinds: dict[str, set[str]] = {}
    for item in dump.items:
        classes.setdefault(item.entry.name, {})[_stage(item)[0]] = item.entry.module
        kinds.setdefault(item.entry.module, set()).add(item.entry.kind)
    inside: dict[tuple[int, str], int] = {}
    for name, own in classes.items():
        parts = name.split(".")
        for stage in own:
            for length in range(1, len(parts)):
                outer = stage, ".".join(parts[:length])
                inside[outer] = inside.get(outer, 0) + 1
    found = set()
    for name, own in classes.items():
        if len(set(own.values())) > 1:
            real = max(own, key=lambda stage: (inside.get((stage, name), 0), -len(kinds[own[stage]])))
            found |= {(stage, name) for stage, each in own.items() if each != own[real]}
    return found


def stage_offsets(dump: Dump, absent: Collection[tuple[int, str]] = ()) -> dict[int, dict[str, int]]:
    """{pipeline stage: {path before the number: what is added to it}} where stages count their layers from 0.

    Where every stage has a layer 0, and more than one has layers, each goes on where the one before it ended.
    """
    held: dict[int, dict[str, set[int]]] = {}
    for item in dump.items:
        match = _NUMBER.search(item.entry.name)
        if match is not None and _stage(item) not in absent:
            stage = held.setdefault(item.dump.place.get("pp", 0), {})
            stage.setdefault(item.entry.name[: match.start()], set()).add(int(match[0]))
    offsets: dict[int, dict[str, int]] = {}
    ends: dict[str, int] = {}
    clash = {before for before in {each for own in held.values() for each in own}
             if _from_zero([own[before] for own in held.values() if before in own])}
    for number in sorted(held):
        for before in sorted(clash & held[number].keys()):
            offsets.setdefault(number, {})[before] = ends.get(before, 0)
            ends[before] = ends.get(before, 0) + max(held[number][before]) + 1
    return offsets


def _from_zero(stages: list[set[int]]) -> bool:
    return len(stages) > 1 and all(0 in each for each in stages)


def _laps(passes: Mapping[int, Pass]) -> dict[int, int]:
    """{number of a pass: lap}. A pass begins a new one when it computes a position again that was computed before."""
    made: dict[int, int] = {}
    seen: dict[str, dict[int, int]] = {}
    lap: dict[str, int] = {}
    for number in sorted(passes):
        each = passes[number]
        family = each.phase if each.phase in ("backward", "step") else "forward"
        until = seen.setdefault(family, {})
        rows = [run for run in each.rows if run.sequence != PADDING]
        again = any(run.first < until.get(run.sequence, 0) for run in rows) or (family in lap and not rows)
        lap[family] = lap.get(family, 0) + again
        if again:
            until.clear()
        for run in rows:
            until[run.sequence] = max(until.get(run.sequence, 0), run.first + run.count)
        made[number] = lap[family]
    return made
