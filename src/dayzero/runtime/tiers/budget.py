"""Divides a number of bytes among what can be kept. Without torch's computing.

Every pass needs the layers and the head whole, and of the experts only the chosen ones: a byte for a layer or the head
saves a byte of every pass, one for an expert saves less. So layers and head come first, once the experts have room for
what one layer chooses; experts get the rest; the table of embeddings, of which a pass reads single rows, comes last.

Where weights are to be kept as they are stored, layers and experts that are smaller like that get room for it in place
of room for values, which they get of what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dayzero.errors import UsageError
from dayzero.units import format_bytes

from .parts import Experts, Found, Unit
from .slots import flat_bytes

STAGES = 2
"""Slots for layers, and for blocks of the head, that are read in turns."""
BLOCK = 16 << 20
"""Bytes of a block of the head at most, as long as a row fits."""
_WORTH = 0.8
"""Of the bytes of values, at most, where keeping what is stored is worth decoding it."""
_LEAST = 2
"""Slots of each kind of experts: one is run while the next is read."""
Shapes = tuple[object, ...]


@dataclass(frozen=True)
class Split:
    """Where the bytes go."""

    layers: frozenset[int]
    """Layers that stay."""
    staging: int
    """Slots for the others."""
    head: bool
    """Whether the head stays."""
    table: bool
    """Whether the table of embeddings stays."""
    slots: Mapping[Shapes, int]
    """Of each kind of experts."""
    stored: int
    """Bytes for layers and experts as they are in the files."""
    used: int
    """Bytes of all that."""


@dataclass(frozen=True)
class Sizes:
    """What there is to keep; bytes."""

    layers: tuple[int, ...]
    head: int
    block: int
    """Of a block of the head; 0 where it is whole anyway."""
    table: int
    experts: Mapping[Shapes, tuple[int, int, int]]
    """Of each kind: bytes of one, how many there are, how many of them a token needs of a layer."""
    stored_layers: tuple[int, ...] = ()
    """Each as it is in the files; empty: layers are kept as values only."""
    stored_experts: Mapping[Shapes, int] = field(default_factory=dict)
    """One of a kind likewise; without the kinds that are kept as values only."""

    def least(self) -> int:
        """With next to nothing kept."""
        staged = min(STAGES, len(self.layers)) * max(self.layers, default=0)
        return staged + STAGES * self.block + sum(
            each * min(count, _LEAST) for each, count, _ in self.experts.values())


def kinds(experts: Sequence[Experts]) -> dict[Shapes, list[Unit]]:
    """Experts that fit into each other's place, stacked ones and listed ones apart."""
    made: dict[Shapes, list[Unit]] = {}
    for found in experts:
        for unit in found.units:
            if unit.parts:
                made.setdefault((found.packed, unit.shapes), []).append(unit)
    return made


def sizes(found: Found, head: int, block: int, table: int, chosen: int, stored: Callable[[Unit], int] | None = None
          ) -> Sizes:
    """Of what was found, where a token chooses `chosen` experts of a layer. `stored`: bytes of a unit in the files, if
    units may be kept like that."""
    layers = tuple(flat_bytes(layer.unit) for layer in found.layers)
    experts = {shapes: (flat_bytes(units[0]), len(units), chosen) for shapes, units in kinds(found.experts).items()}
    made = Sizes(layers=layers, head=head, block=block, table=table, experts=experts)
    if stored is None:
        return made
    packed = tuple(stored(layer.unit) for layer in found.layers)
    single = {shapes: stored(units[0]) for shapes, units in kinds(found.experts).items()}
    return replace(made, stored_layers=packed if sum(packed) <= _WORTH * sum(layers) else (),
                   stored_experts={shapes: size for shapes, size in single.items()
                                   if size <= _WORTH * experts[shapes][0]})


def split(sizes: Sizes, room: int, option: str, besides: int, *, limited: bool = True) -> Split:
    """Divide `room` bytes. `option` and `besides`, what is taken by everything else, are for the message. Without a
    limit, what is kept as it is stored gets no room as values beside.

    Raises UsageError, which tells what the least is, when not even that fits.
    """
    least = sizes.least()
    if room < least:
        raise UsageError(f"{option} {format_bytes(room + besides)} is too little: the least is "
                         f"{format_bytes(least + besides)}, {format_bytes(besides)} of it for what always stays",
                         f"give {option} {least + besides} bytes or more")
    slots, left = _chosen(sizes, room - least)
    head = sizes.head - STAGES * sizes.block <= left
    left -= sizes.head - STAGES * sizes.block if head else 0
    stored, left = _stored(sizes, left)
    kept: frozenset[int] = frozenset()
    if limited or not sizes.stored_layers:
        kept, left = _layers(sizes, left)
    slots, left = _more(sizes, slots, left, () if limited else sizes.stored_experts)
    table = sizes.table <= left
    staging = 0 if len(kept) == len(sizes.layers) else min(STAGES, len(sizes.layers))
    return Split(layers=kept, staging=staging, head=head, table=table, slots=slots, stored=stored,
                 used=room - left + (sizes.table if table else 0))


def _chosen(sizes: Sizes, left: int) -> tuple[dict[Shapes, int], int]:
    """Slots for the experts that a token needs of a layer, where there is room for more than the least."""
    slots = {shapes: min(count, _LEAST) for shapes, (_, count, _) in sizes.experts.items()}
    for shapes, (each, count, chosen) in sizes.experts.items():
        more = max(0, min(left // each, min(count, chosen) - slots[shapes]))
        slots[shapes] += more
        left -= more * each
    return slots, left


def _stored(sizes: Sizes, left: int) -> tuple[int, int]:
    """Room for layers and experts as they are in the files, as far as there is any; and what is left."""
    wanted = sum(sizes.stored_layers) + sum(
        size * sizes.experts[shapes][1] for shapes, size in sizes.stored_experts.items())
    return min(left, wanted), left - min(left, wanted)


def _layers(sizes: Sizes, left: int) -> tuple[frozenset[int], int]:
    """Layers that stay, spread evenly so that there is computing between two that are read."""
    count, largest = len(sizes.layers), max(sizes.layers, default=0)
    if sum(sizes.layers) - min(STAGES, count) * largest <= left:
        return frozenset(range(count)), left - sum(sizes.layers) + min(STAGES, count) * largest
    number = min(left // largest, count)
    kept = frozenset(at * count // number for at in range(number)) if number else frozenset()
    return kept, left - sum(sizes.layers[each] for each in kept)


def _more(sizes: Sizes, slots: dict[Shapes, int], left: int, without: Collection[Shapes]
          ) -> tuple[dict[Shapes, int], int]:
    """The rest for experts, to each kind by the bytes of it that have no place yet; to those of `without` nothing."""
    lacking = {shapes: 0 if shapes in without else (count - slots[shapes]) * each
               for shapes, (each, count, _) in sizes.experts.items()}
    total, rest = sum(lacking.values()), left
    for shapes, (each, _, _) in sizes.experts.items():
        share = lacking[shapes] if total <= left else left * lacking[shapes] // total
        more = share // each
        slots = {**slots, shapes: slots[shapes] + more}
        rest -= more * each
    return slots, rest
