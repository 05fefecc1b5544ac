"""The tensors of a release by name pattern: where each is, what its neighbours are, and which are absent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dayzero.placement.split import is_mtp, is_tower
from dayzero.schema import Release, TensorGroup

Place = tuple[int, int]
"""(layer, expert); -1 where the pattern has none."""
FEW = 10
"""A layer is taken to lack a tensor if at most one in this many of the layers of its kind lacks it."""


class Patterns:
    """Groups by pattern and by place."""

    def __init__(self, release: Release) -> None:
        self.model = release.model
        self.groups: dict[str, list[TensorGroup]] = defaultdict(list)
        for group in release.tensors.groups:
            self.groups[group.pattern].append(group)
        decoder = {family.pattern for family in self.model.families
                   if family.layers and not is_tower(family) and not is_mtp(family, self.model)}
        self.decoder = sorted(pattern for pattern in self.groups if pattern in decoder)
        """Patterns of the decoder layers."""
        self.places: dict[str, dict[Place, TensorGroup]] = {
            pattern: {place: group for group in self.groups[pattern] for place in _places(group)}
            for pattern in self.decoder}
        """For each pattern of the decoder: place -> group."""
        self.by_module: dict[str, list[str]] = defaultdict(list)
        for pattern in self.decoder:
            self.by_module[pattern.rpartition(".")[0]].append(pattern)

    def kinds(self) -> Iterator[list[int]]:
        """Layers that have the same kinds of attention and feed-forward block."""
        kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, layer in enumerate(self.model.layers):
            kinds[layer.attention, layer.feed_forward].append(index)
        yield from kinds.values()

    def layers_of(self, pattern: str) -> set[int]:
        """Layers that have a tensor of the pattern."""
        return {layer for layer, _ in self.places[pattern]}

    def empty_layers(self) -> list[int]:
        """Decoder layers without any tensor."""
        present: set[int] = set()
        for pattern in self.decoder:
            present |= self.layers_of(pattern)
        return [index for index in range(len(self.model.layers)) if index not in present]

    def lacking_layers(self, pattern: str) -> list[int]:
        """Layers that lack the pattern although nearly all layers of their kind have it."""
        have, lacking = self.layers_of(pattern), []
        for layers in self.kinds():
            absent = [index for index in layers if index not in have]
            if len(absent) <= max(1, len(layers) // FEW) and len(layers) - len(absent) >= 3 * len(absent):
                lacking += absent
        return lacking

    def lacking_experts(self, pattern: str) -> list[Place]:
        """(layer, expert) without a tensor, in layers that have the pattern for other experts."""
        places = self.places[pattern]
        if not any(expert >= 0 for _, expert in places):
            return []
        lacking = []
        for layer in sorted(self.layers_of(pattern)):
            if layer < len(self.model.layers):
                experts = self.model.feed_forwards[self.model.layers[layer].feed_forward].experts
                lacking += [(layer, expert) for expert in range(experts) if (layer, expert) not in places]
        return lacking

    def lost_in_predictions(self) -> Iterator[tuple[str, Place]]:
        """What a prediction layer, numbered on from the decoder's, lacks of an expert's matrices where it has nearly
        all; or the one matrix, or its scale, that it lacks of what the last decoder layer has."""
        last = len(self.model.layers) - 1
        holds: dict[int, set[str]] = defaultdict(set)
        for pattern in self.decoder:
            for layer in self.layers_of(pattern):
                holds[layer].add(pattern)
        experts = self.model.feed_forwards[self.model.layers[last].feed_forward].experts
        strange = {family.pattern for family in self.model.families if family.role == "other"}
        for layer in sorted(holds):
            if layer > last and holds[layer] >= {pattern for pattern in holds[last] if "{E}" in pattern}:
                lost = [pattern for pattern in holds[last] - holds[layer] - strange
                        if len(self.groups[pattern][0].shape) > 1]
                modules = {pattern.rpartition(".")[0] for pattern in lost}
                yield from ((pattern, (layer, -1)) for pattern in (sorted(lost) if len(modules) == 1 else ()))
                for pattern in sorted(holds[layer]):
                    there = {expert for at, expert in self.places[pattern] if at == layer and expert >= 0}
                    if there and len(there) < experts <= len(there) + max(1, experts // FEW):
                        yield from ((pattern, (layer, expert)) for expert in sorted(set(range(experts)) - there))

    def odd_ones(self, pattern: str) -> list[tuple[Place, TensorGroup, TensorGroup]]:
        """(place, its group, the usual group) where a tensor has another shape than nearly all of its kind."""
        odd = []
        for layers in self.kinds() if len(self.groups[pattern]) > 1 else ():
            inside = {place: group for place, group in self.places[pattern].items() if place[0] in set(layers)}
            shapes = Counter(group.shape for group in inside.values())
            if len(shapes) < 2:
                continue
            usual, count = shapes.most_common(1)[0]
            others = [(place, group) for place, group in inside.items() if group.shape != usual]
            if len(others) <= max(1, len(inside) // FEW) and count >= 3 * len(others):
                norm = next(group for group in inside.values() if group.shape == usual)
                odd += [(place, group, norm) for place, group in others]
        return odd

    def stored_differently(self, pattern: str, place: Place) -> bool:
        """Whether a tensor of the same module has, at that place, another dtype than usual: then what else belongs to
        it differs as well, and its absence means nothing."""
        for other in self.by_module[pattern.rpartition(".")[0]]:
            places = self.places[other]
            if other != pattern and place in places:
                usual = Counter(group.dtype for group in places.values()).most_common(1)[0][0]
                if places[place].dtype != usual:
                    return True
        return False


def _places(group: TensorGroup) -> Iterator[Place]:
    return zip(group.layer.values.tolist(), group.expert.values.tolist(), strict=True)


def name(pattern: str, place: Place) -> str:
    """Name of the tensor of a pattern at a place."""
    return pattern.replace("{L}", str(place[0])).replace("{E}", str(place[1]))
