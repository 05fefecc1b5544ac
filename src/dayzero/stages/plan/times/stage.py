"""What pipeline stages hold, as numbers of what layers consist of: stages with equal numbers are alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts, Ranges
from dayzero.placement.operators import product
from dayzero.placement.split import layers_here
from dayzero.schema import ModelSpec, WeightFamily

Split = tuple[tuple[int, int], ...]
"""For each stage: first layer and one past the last."""


@dataclass(frozen=True)
class Stage:
    """One stage; or arrays with one number for each of many."""

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


@dataclass(frozen=True, eq=False)
class Rows:
    """The stages of many layouts: a row for each layout and each kind of its stages, those of a layout one after
    another and in the order of its pipeline. Layouts and rows are the last axis of what the methods take."""

    layouts: Layouts
    """Of the rows."""
    layers: Ranges
    """Of the first stage of the kind."""
    stage: Stage
    """What it holds."""
    times: Value
    """Stages of the kind."""
    owner: Value
    """Position of the row's layout."""
    kind: Value
    """Position of the row among those of its layout."""
    begins: Value
    """For each layout its first row."""
    pipelines: Mapping[int, Value]
    """For each number of stages: the kind of each of them."""

    def spread(self, column: Value) -> Value:
        """Figures of layouts, for each of their rows."""
        return column[..., self.owner] if np.ndim(column) else column

    def any(self, column: Value) -> Value:
        """Figures that are the same in all rows of a layout, for each layout."""
        return column[..., self.begins] if np.ndim(column) else column

    def total(self, column: Value) -> Value:
        """The sum over the stages of each layout."""
        return np.add.reduceat(column * self.times, self.begins, axis=-1)

    def most(self, column: Value) -> Value:
        """The largest of each layout."""
        return np.maximum.reduceat(column, self.begins, axis=-1)

    def least(self, column: Value) -> Value:
        """The smallest of each layout."""
        return np.minimum.reduceat(column, self.begins, axis=-1)

    def largest(self, column: Value) -> Value:
        """For each layout the row with the largest figure, the first of several."""
        rows = np.where(column == self.spread(self.most(column)), np.arange(len(self.owner)), len(self.owner))
        return self.least(rows)


def rows(model: ModelSpec, layouts: Layouts, split: Callable[[ModelSpec, int], Split]) -> Rows:
    """The stages of layouts, alike ones once. `split`: the layers of each stage, for a number of stages."""
    depths, which = np.unique(layouts.pp, return_inverse=True)
    parts = [_kinds(model, split(model, int(depth))) for depth in depths]
    counts = np.array([len(ranges) for ranges, _ in parts], dtype=np.int64)[which]
    owner = np.repeat(np.arange(len(layouts)), counts)
    begins = np.cumsum(counts) - counts
    kind = np.arange(len(owner)) - begins[owner]
    distinct = tuple(one for ranges, _ in parts for one in ranges)
    first = np.cumsum([0, *(len(ranges) for ranges, _ in parts)])[which]
    place = first[owner] + kind
    times = np.concatenate([np.bincount(kinds) for _, kinds in parts]) if parts else np.zeros(0)
    return Rows(layouts.take(owner), Ranges(distinct, place), _gathered([stage(model, one) for one in distinct], place),
                times[place], owner, kind, begins,
                {int(depth): kinds for depth, (_, kinds) in zip(depths, parts, strict=True)})


def _kinds(model: ModelSpec, split: Split) -> tuple[list[range], Value]:
    """(layers of the first stage of each kind, for each stage its kind): stages that hold as much of everything."""
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
    return ranges, np.array(which)


def _each_family(model: ModelSpec, split: Split) -> list[bytes]:
    """For each stage the tensors of each family, as text to compare."""
    edges = [start for start, _ in split] + [split[-1][1]]
    below = np.array([np.searchsorted(family.layers, edges) for family in model.families])
    return [column.tobytes() for column in np.diff(below).T]


def _gathered(parts: list[Stage], place: Value) -> Stage:
    """The stage of each row, from those that there are."""
    def column(values: Iterable[float]) -> Value:
        return np.array(list(values))[place]

    return Stage(
        families=tuple(column(values) for values in zip(*(part.families for part in parts), strict=True)),
        attentions={name: column(part.attentions[name] for part in parts) for name in parts[0].attentions},
        blocks={name: column(part.blocks[name] for part in parts) for name in parts[0].blocks},
        **{name: column(getattr(part, name) for part in parts) for name in ("layers", "operators", "first", "last")})
