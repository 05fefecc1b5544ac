"""Which layers a twin has: every kind of the original, by what the config says and by what its tensors are.

A layer keeps its number, or one that the config gives the same kind, so that rules such as "every fourth" still hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import vocabulary
from dayzero.errors import UsageError
from dayzero.schema import ModelSpec, Release

from .facts import TowerKeys, get, places

LEAST = 4
"""Layers of a twin whose original has as many."""
TOWER_LEAST = 2
ROOM = 4
"""Layers more than are needed for every kind that the config knows, for those that only tensors show."""


@dataclass
class Kept:
    """What is left of the layers."""

    layers: tuple[int, ...]
    """Layer of the original that each layer stands for."""
    total: int
    """Decoder layers of the original."""
    towers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Table of a tower -> layer of the original that each of its layers stands for."""
    depths: dict[str, int] = field(default_factory=dict)
    """Table of a tower -> its layers in the original."""
    left_out: int = 0
    """Kinds of layers, by their tensors, that no layer stands for."""

    @property
    def count(self) -> int:
        """Decoder layers of the twin."""
        return len(self.layers)

    def new(self, layer: int) -> int | None:
        """Number in the twin of a decoder layer, or of one behind the last (multi-token prediction); None: left out."""
        if layer >= self.total:
            return layer - self.total + self.count
        return self.layers.index(layer) if layer in self.layers else None


def choose_layers(release: Release, asked: int | None, towers: list[TowerKeys]) -> Kept:
    """Raises UsageError when so many layers cannot hold every kind."""
    model = release.model
    stated = [(layer.attention, layer.feed_forward) for layer in model.layers]
    seen = _by_tensors(release, stated)
    fixed = any(_is_rule(release.config, name) for name in twin_facts().by_number)
    needed = _covering(stated)
    if asked is not None and not min(needed, len(stated)) <= asked <= len(stated):
        raise UsageError(f"--layers {asked} cannot be: {release.name} has {len(stated)} layers, and the first {needed} "
                         "are the fewest that hold every kind", f"give a number from {needed} to {len(stated)}")
    layers = _selected(stated, seen, asked or min(len(stated), max(LEAST, needed)), fixed, grow=asked is None)
    deep = [tower for tower in towers if tower.depth]
    return Kept(layers=tuple(layers), total=len(stated), left_out=len(set(seen)) - len({seen[one] for one in layers}),
                depths={tower.table: int(get(release.config, f"{tower.table}.{tower.depth}")) for tower in deep},
                towers={tower.table: _tower_layers(release.config, tower) for tower in deep})


def _by_tensors(release: Release, stated: list[tuple[str, str]]) -> list[Hashable]:
    """What each decoder layer is, by config and by its tensors."""
    groups: dict[int, set[tuple[str, tuple[int, ...], str]]] = defaultdict(set)
    for family in release.model.families:
        if not family.role.startswith(("vision", "audio", "projector", "mtp.")):
            for layer in family.layers:
                groups[layer].add((family.pattern, family.shape, family.dtype))
    return [(*kinds, frozenset(groups[layer])) for layer, kinds in enumerate(stated)]


def _is_rule(config: Mapping[str, Any], name: str) -> bool:
    """Whether the config states the fact as a number, not as a list of layers. A step of 1 is no rule."""
    least = 2 if name.startswith(("expert", "full", "sliding")) else 1
    found = (get(config, place + word) for place in places(config) for word in vocabulary().config.spellings()[name])
    return any(type(value) is int and value >= least for value in found)


def _covering(stated: list[tuple[str, str]]) -> int:
    """The fewest first layers that hold every kind."""
    return 1 + max(stated.index(kind) for kind in set(stated))


def _selected(stated: list[tuple[str, str]], seen: list[Hashable], count: int, fixed: bool, *, grow: bool) -> list[int]:
    """Layers that stand at each place. Where the config goes by numbers, the kind of a place stays."""
    layers = list(range(count))
    missing = [kind for kind in dict.fromkeys(seen) if kind not in {seen[one] for one in layers}]
    for kind in missing:
        new = seen.index(kind)
        place = _spare(stated, seen, layers, new, fixed)
        if place is not None:
            layers[place] = new
        elif grow and len(layers) < count + ROOM:
            free = next((one for one in range(len(layers), len(stated))
                         if not fixed or stated[one] == stated[new]), None)  # fmt: skip
            if free is None or (fixed and free - len(layers) >= ROOM):
                continue
            layers += [*_fill(stated, layers, free), new]
    return layers if fixed else sorted(layers)


def _fill(stated: list[tuple[str, str]], layers: list[int], end: int) -> list[int]:
    """Layers for the places up to `end`: their own, or of the same kind where that one is used already."""
    added: list[int] = []
    for place in range(len(layers), end):
        used = {*layers, *added}
        alike = (one for one in (place, *range(len(stated))) if one not in used and stated[one] == stated[place])
        added.append(next(alike, place))
    return added


def _spare(stated: list[tuple[str, str]], seen: list[Hashable], layers: list[int], new: int, fixed: bool) -> int | None:
    """A place whose layer another one stands for too, and that may be of the new layer's kind."""
    for place in reversed(range(len(layers))):
        double = sum(seen[one] == seen[layers[place]] for one in layers) > 1
        if double and new not in layers and (not fixed or stated[place] == stated[new]):
            return place
    return None


def _tower_layers(config: Mapping[str, Any], tower: TowerKeys) -> tuple[int, ...]:
    """The first layers, and those that lists in the table name."""
    table = get(config, tower.table)
    depth = int(get(table, tower.depth))
    named = {entry for _, entries in tower_lists(table, depth) for entry in entries}
    few = sorted({*range(min(depth, TOWER_LEAST)), *named} if len(named) < depth else set(range(depth)))
    return tuple(few) if named or depth <= TOWER_LEAST else tuple(range(TOWER_LEAST))


def tower_lists(table: Mapping[str, Any], depth: int) -> list[tuple[str, list[int]]]:
    """(key, layers) of the lists of layers in a tower's table."""
    return [(key, value) for key, value in table.items()
            if any(fnmatchcase(key, word) for word in twin_facts().tower_lists) and isinstance(value, list) and value
            and all(type(one) is int and 0 <= one < depth for one in value)]


def is_layer_list(key: str) -> bool:
    """Whether a key's list of numbers names layers."""
    words = vocabulary().config.patterns.values()
    return any(key == spelling.rpartition(".")[2] for spellings in words for spelling in spellings) or any(
        fnmatchcase(key, word) for word in twin_facts().layer_lists)


def index_base(model: ModelSpec) -> int:
    """Number of the first layer in lists of layers."""
    text = model.sources.get("index_base", "0").partition(":")[0].strip()
    return int(text) if text.isdigit() else 0
