"""Many layouts at once: a column for each degree, and what a function of one layout gives for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np

from dayzero.arrays import Value
from dayzero.schema import Layout
from dayzero.schema.layout import DEGREES

Column = np.ndarray[Any, np.dtype[np.int64]]
"""Shape [layouts]."""
COLUMNS = (*DEGREES, "attention_tp")
"""Degrees of a layout, each a column."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Layouts:
    """Layouts as columns of one length; the names are those of `Layout`."""

    tp: Column
    """Tensor parallel."""
    pp: Column
    """Pipeline parallel."""
    ep: Column
    """Expert parallel."""
    dp: Column
    """Data parallel."""
    cp: Column
    """Context parallel."""
    attention_tp: Column
    """Ranks that share attention; 0: all tp ranks."""

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        """The layouts in order."""
        rows = [[getattr(layout, name) for name in COLUMNS] for layout in layouts]
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T)

    @classmethod
    def joined(cls, *some: Layouts) -> Layouts:
        """One after another."""
        return cls(*(np.concatenate([getattr(one, name) for one in some]) for name in COLUMNS))

    def take(self, index: Value) -> Layouts:
        """Those at the positions of an array, or where an array of truths holds."""
        return Layouts(*(getattr(self, name)[index] for name in COLUMNS))

    def __len__(self) -> int:
        return len(self.tp)

    def __getitem__(self, position: int) -> Layout:
        return Layout(**{name: int(getattr(self, name)[position]) for name in COLUMNS})

    def __iter__(self) -> Iterator[Layout]:
        return (self[position] for position in range(len(self)))

    @cached_property
    def attention_degree(self) -> Column:
        """Ranks that share attention."""
        degree: Column = np.where(self.attention_tp > 0, self.attention_tp, self.tp)
        return degree

    @cached_property
    def expert_tp(self) -> Column:
        """Ways that one expert's width is split."""
        ways: Column = np.maximum(1, self.tp // self.ep)
        return ways

    @cached_property
    def world_size(self) -> Column:
        """Devices that the layout takes."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, eq=False)
class Ranges:
    """The layers of many stages, of which many are alike."""

    distinct: tuple[range, ...]
    """The different ones."""
    which: Column
    """For each stage the position of its layers in `distinct`."""


def of_stage(layers: range | Ranges, figure: Callable[[range], float]) -> Value:
    """A figure of a stage; of many stages an array, computed once for those that are alike."""
    if isinstance(layers, range):
        return figure(layers)
    return np.array([figure(one) for one in layers.distinct])[layers.which]


@dataclass(frozen=True)
class Shared(Generic[T]):
    """What a function gives for many layouts, kept once for those that it cannot tell apart."""

    values: list[T]
    """The different results, in the order of their first layouts."""
    which: Column
    """For each layout the position of its result."""

    def column(self, of: Callable[[T], float]) -> Value:
        """A figure of the result, for each layout."""
        return np.array([float(of(value)) for value in self.values])[self.which]


def shared(function: Callable[[Layout], T], layouts: Layouts) -> Shared[T]:
    """`function(layout)` for all layouts. It is called once for each combination of values of those degrees that it
    reads: layouts that have the same of these take the same way through it."""
    which, values = np.full(len(layouts), -1), list[T]()
    left = which < 0
    while left.any():
        read = _Read(layouts[int(left.argmax())])
        values.append(function(cast(Layout, read)))
        alike = left.copy()
        for name, value in read.seen.items():
            alike &= getattr(layouts, name) == value
        which[alike] = len(values) - 1
        left &= ~alike
    return Shared(values, which)


class _Read:
    """Stands in for a layout, and remembers what was read of it."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self.seen = layout, dict[str, int]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._layout, name)
        if name in COLUMNS or isinstance(getattr(Layouts, name, None), cached_property):
            self.seen[name] = value
            return value
        for read in COLUMNS:  # a text or a check: it depends on all degrees
            self.seen[read] = getattr(self._layout, read)
        return value
