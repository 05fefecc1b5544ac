"""Which values a sampled dump keeps: decided by what they are, so that dumps made apart keep the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import UsageError
from dayzero.runtime.golden.dump import positions
from dayzero.schema import Column
from dayzero.schema.golden import Held, Rows, Sample

SMALL = 4096
"""Tensors of fewer values are kept whole."""
_ROWS, _COLUMNS = 1, 2


@dataclass(frozen=True)
class Sampling:
    """Shares of rows and columns, each 0 to 1, that are kept."""

    rows: float = 0.25
    columns: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.rows <= 1 and 0 < self.columns <= 1):
            raise UsageError(f"a sample of {self.rows:g} of the rows and {self.columns:g} of the columns is none",
                             "give shares above 0 and up to 1")

    def of(self, shape: tuple[int, ...], rows: tuple[Rows, ...] | None, held: tuple[Held, ...], *,
           columns: bool = True) -> Sample | None:
        """What is kept of a tensor. `rows`: of its first axis; None: it is another axis, and its index in the whole
        tensor counts. None: all of it."""
        if prod(shape) < SMALL:
            return None
        first = None
        if rows is not None:
            first = _of_rows(rows, self.rows, self.seed * 4 + _ROWS)
        elif len(shape) > 1:
            first = _of_axis(shape[0], _along(0, held), 0, self.rows, self.seed * 4 + _ROWS)
        last = None
        if columns and (len(shape) > 1 or first is None):
            last = _of_axis(shape[-1], _along(len(shape) - 1, held), 1, self.columns, self.seed * 4 + _COLUMNS)
        return Sample(rows=first, columns=last)


def _along(axis: int, held: tuple[Held, ...]) -> Held | None:
    return next((each for each in held if each.axis == axis), None)


@lru_cache(maxsize=64)  # all tensors of a pass have the same ones
def _of_rows(rows: tuple[Rows, ...], share: float, seed: int) -> Column | None:
    every = positions(rows)
    return _kept(_mixed(every[:, 0], every[:, 1]), share, seed)


@lru_cache(maxsize=1024)
def _of_axis(size: int, held: Held | None, number: int, share: float, seed: int) -> Column | None:
    """By the index in the whole tensor."""
    whole = np.arange(size, dtype=np.int64) if held is None else held.indices
    return _kept(_mixed(whole, np.int64(number)), share, seed)


def _kept(keys: NDArray[np.uint64], share: float, seed: int) -> Column | None:
    if share >= 1:
        return None
    return Column(np.flatnonzero(_hash(keys ^ _hash(np.uint64(seed))) < np.uint64(int(share * 2**63) * 2)))


def _mixed(first: Any, second: Any) -> Any:
    return _hash(np.asarray(first).astype(np.uint64) + _hash(np.asarray(second).astype(np.uint64)))


def _hash(value: Any) -> Any:
    """splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    with np.errstate(over="ignore"):
        mixed = np.asarray(value, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
