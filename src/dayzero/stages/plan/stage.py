"""What pipeline stages hold, as numbers of what layers consist of: stages with equal numbers are alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.operators import product
from dayzero.placement.split import layers_here
from dayzero.schema import ModelSpec, WeightFamily

Split = tuple[tuple[int, int], ...]
"""For each stage: first layer and one past the last."""


@dataclass(frozen=True)
class Stage:
    """One stage; or arrays of shape [stages, 1], with one number for each of several."""

    families: tuple[Value, ...]
    """The share of each weight family's tensors."""
    attentions: Mapping[str, Value]
    """Layers of each kind of attention."""
    blocks: Mapping[str, Value]
    """Layers with each kind of feed-forward block."""
    layers: Value
    """Layers."""
    operators: Value
    """Products with weights."""
    first: Value
    """1: it looks the tokens' rows up."""
    last: Value
    """1: it has the output head."""


def stage(model: ModelSpec, layers: range) -> Stage:
    """The stage that holds these layers."""
    counted = [layers_here(family, model, layers) for family in model.families]
    kinds = [Counter(getattr(model.layers[index], name) for index in layers) for name in ("attention", "feed_forward")]
    return Stage(
        families=tuple(here / total for here, total in counted),
        attentions={name: float(kinds[0][name]) for name in model.attentions},
        blocks={name: float(kinds[1][name]) for name in model.feed_forwards},
        layers=float(len(layers)), operators=operators(model, layers), first=float(layers.start == 0),
        last=float(layers.stop == len(model.layers)))


def operators(model: ModelSpec, layers: range) -> float:
    """Products with weights of some layers."""
    return float(sum(_within(family, layers) for family in model.families
                     if family.parameters and len(family.shape) >= 2 and product(family, model)))


def _within(family: WeightFamily, layers: range) -> int:
    return bisect_left(family.layers, layers.stop) - bisect_left(family.layers, layers.start)


@dataclass(frozen=True)
class Stages:
    """The stages of a split, alike ones once."""

    ranges: tuple[range, ...]
    """Layers of the first stage of each kind."""
    which: np.ndarray
    """For each stage the position of its kind."""
    stage: Stage
    """The kinds, as arrays of shape [kinds, 1]."""

    @property
    def times(self) -> Value:
        """How many stages are of each kind; shape [kinds, 1]."""
        return np.bincount(self.which)[:, None]


def stages(model: ModelSpec, split: Split) -> Stages:
    """The stages of a split of the layers."""
    held = _each_family(model, split)
    found: dict[tuple[object, ...], int] = {}
    ranges, which = list[range](), list[int]()
    for (start, stop), families in zip(split, held, strict=True):
        kinds = Counter((layer.attention, layer.feed_forward) for layer in model.layers[start:stop])
        key = start == 0, stop == len(model.layers), tuple(sorted(kinds.items())), families
        if key not in found:
            found[key] = len(ranges)
            ranges.append(range(start, stop))
        which.append(found[key])
    return Stages(tuple(ranges), np.array(which), _stacked([stage(model, layers) for layers in ranges]))


def _each_family(model: ModelSpec, split: Split) -> list[bytes]:
    """For each stage the tensors of each family, as text to compare."""
    edges = [start for start, _ in split] + [split[-1][1]]
    below = np.array([np.searchsorted(family.layers, edges) for family in model.families])
    return [column.tobytes() for column in np.diff(below).T]


def _stacked(parts: list[Stage]) -> Stage:
    def column(values: list[float]) -> Value:
        return np.array(values)[:, None]

    return Stage(
        families=tuple(column(list(values)) for values in zip(*(part.families for part in parts), strict=True)),
        attentions={name: column([part.attentions[name] for part in parts]) for name in parts[0].attentions},
        blocks={name: column([part.blocks[name] for part in parts]) for name in parts[0].blocks},
        **{name: column([getattr(part, name) for part in parts]) for name in ("layers", "operators", "first", "last")})
