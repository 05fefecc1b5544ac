"""Decoder layers that are alike, and how many of each a pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dayzero.placement.split import is_mtp, is_tower
from dayzero.schema import ModelSpec

Counts = np.ndarray[Any, np.dtype[np.float64]]
"""Shape [stages, kinds]."""


ENDS = ("embedding", "head", "copy")
"""What stages have beside layers, the last columns of counts: the first one the embedding, the last one head and loss
and, where it is not the first one as well, a copy of a tied embedding."""


class Stages(NamedTuple):
    """The stages of a pipeline, those that are alike once."""

    counts: Counts
    """Of each kind of layer and then of ENDS, how many a stage has."""
    alike: Counts
    """How many stages are like it. Shape [stages]."""
    first: Counts
    """Place in the pipeline of the first of them, from 0. Shape [stages]."""


class Kinds:
    """The kinds of decoder layers of a model: layers of one kind have the same blocks and the same weights."""

    def __init__(self, model: ModelSpec) -> None:
        sets: list[list[int]] = [[] for _ in model.layers]
        for number, family in enumerate(model.families):
            if not is_tower(family) and not is_mtp(family, model):
                for index in family.layers:
                    sets[index].append(number)
        keys = [(layer, tuple(families)) for layer, families in zip(model.layers, sets, strict=True)]
        found = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self.of = [found[key] for key in keys]
        """For each layer the number of its kind."""
        self.examples = [keys.index(key) for key in found]
        """For each kind its first layer."""

    @property
    def count(self) -> int:
        """Kinds."""
        return len(self.examples)

    def each(self, chunks: Sequence[tuple[int, int]], pp: int) -> Counts:
        """What each of `pp` stages has that the `chunks` (first layer, one past the last) are dealt out to in turn.
        Shape [pp, kinds and ends]."""
        rows = np.zeros((pp, self.count + len(ENDS)))
        for place, (start, stop) in enumerate(chunks):
            rows[place % pp, : self.count] += np.bincount(self.of[start:stop], minlength=self.count)
        rows[0, -3] = rows[-1, -2] = 1
        rows[-1, -1] = pp > 1
        return rows

    def stages(self, chunks: Sequence[tuple[int, int]], pp: int) -> Stages:
        """The same, with stages that are alike once."""
        distinct, first, alike = np.unique(self.each(chunks, pp), axis=0, return_index=True, return_counts=True)
        order = np.argsort(first)
        return Stages(distinct[order], alike[order].astype(float), first[order].astype(float))
