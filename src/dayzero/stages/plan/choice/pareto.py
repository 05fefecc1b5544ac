"""The trade-off between throughput and latency: which layouts, at which loads, no other beats.

A row is one layout at one load. It is beaten by a row that is at least as good in every column and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]
T = TypeVar("T")
MOST_LOADS = 16
"""Loads of a sweep."""
STEP = 0.02
"""Share by which two latencies have to differ to be told apart."""


def front(*columns: NDArray[Any]) -> Mask:
    """Which rows no other beats, of columns in which smaller is better, all of one length. Of equal rows the first is
    taken. Rows in lexicographic order: the first of those left is beaten by none, and takes out all that it beats, so
    the work is that of one comparison of all rows for each row of the front."""
    values = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    left = np.lexsort(values.T[::-1])
    kept = np.zeros(len(values), dtype=np.bool_)
    while left.size:
        first = left[0]
        kept[first] = True
        left = left[~(values[left] >= values[first]).all(axis=1)]
    return kept


def loads(most: int, asked: int) -> list[int]:
    """Concurrencies of a sweep: powers of two up to `most` sequences, and the one that the workload asks for, rising.
    Where these are too many, from the least on in larger steps."""
    rising = [2**power for power in range(max(0, int(most)).bit_length())]
    step = -(-len(rising) // MOST_LOADS) or 1
    return sorted({*rising[::step], *rising[-1:], asked})


def best_for(throughput: Column, latencies: dict[str, Column]) -> list[tuple[str, ...]]:
    """For each row the names of the latencies against which it trades throughput without being beaten; latencies count
    in steps."""
    masks = {name: front(steps(latency), -throughput) for name, latency in latencies.items()}
    return [tuple(name for name, mask in masks.items() if mask[row]) for row in range(len(throughput))]


def steps(latency: Column) -> Column:
    """Positive values as whole numbers of steps."""
    counted: Column = np.round(np.log(latency) / STEP)
    return counted


def thinned(rows: Sequence[T], most: int) -> list[T]:
    """At most so many of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    places = np.linspace(0, len(rows) - 1, most).round().astype(int)
    return [rows[place] for place in dict.fromkeys(places.tolist())]
