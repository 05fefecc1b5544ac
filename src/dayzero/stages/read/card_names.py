"""Tensors by name and layer, as cards speak of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dayzero.errors import CardError
from dayzero.schema import TensorGroup, TensorTable

NOWHERE = -1
"""Stands for the layer of a tensor that is in none."""
MOST_LITERALS = 10_000
"""Experts that are written one by one because a layer does not have all of them alike."""


class Stored(NamedTuple):
    """What is stored under a name in one layer."""

    shape: tuple[int, ...]
    """Of one tensor."""
    dtype: str
    """Of one tensor."""
    experts: int
    """Experts that have it, counted from 0; 0: it is no expert's."""


Names = dict[str, dict[int, Stored]]
"""Name with `{L}` and `{E}` -> layer -> what is stored there."""


def by_name(tensors: TensorTable) -> Names:
    """All tensors, sorted by name and layer. Experts of a layer that do not count from 0, or differ, have names of
    their own. Raises CardError where there are thousands of those."""
    found: dict[str, dict[int, list[tuple[TensorGroup, list[int]]]]] = {}
    for group in tensors.groups:
        layers = found.setdefault(group.pattern, {})
        for layer, experts in _layers(group):
            layers.setdefault(layer, []).append((group, experts))
    names: Names = {}
    literals = 0
    for pattern, layers in found.items():
        for layer, pieces in layers.items():
            group, experts = pieces[0]
            if len(pieces) == 1 and experts == list(range(len(experts))):
                names.setdefault(pattern, {})[layer] = Stored(group.shape, group.dtype, len(experts))
                continue
            for group, experts in pieces:
                literals += len(experts)
                for expert in experts:
                    name = pattern.replace("{E}", str(expert))
                    names.setdefault(name, {})[layer] = Stored(group.shape, group.dtype, 0)
    if literals > MOST_LITERALS:
        raise CardError(f"{literals} tensors of experts are alone in their layers",
                        "a card states experts that are alike; this release needs its files")
    return {name: dict(sorted(names[name].items())) for name in sorted(names)}


def _layers(group: TensorGroup) -> list[tuple[int, list[int]]]:
    """(layer, its experts in order) of a group; no experts where the name has none."""
    layer, expert = group.layer.values, group.expert.values
    order = np.lexsort((expert, layer))
    numbers, starts = np.unique(layer[order], return_index=True)
    if "{E}" not in group.pattern:
        return [(int(number), []) for number in numbers]
    pieces = np.split(expert[order], starts[1:])
    return [(int(number), piece.tolist()) for number, piece in zip(numbers, pieces, strict=True)]
