"""Places: the tensors at the borders of modules, and what a run had there, by sequence and position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Place(NamedTuple):
    """One tensor that a module takes or gives."""

    name: str
    """Path of the module."""
    what: str
    """input or output."""
    slot: str
    """Which of several tensors."""
    call: int = 0
    """Which call of the module in a pass."""


@dataclass(frozen=True)
class Held:
    """What a run had at a place, of one sequence."""

    values: NDArray[Any]
    """[positions, ...]: float32 or int64, row by row; zeros where nothing is known."""
    known: NDArray[np.bool_]
    """[positions]: which rows were recorded."""


class Recorded(Protocol):
    """What a run had."""

    @property
    def places(self) -> Iterable[Place]:
        """All places whose rows are known by sequence and position."""
        ...

    @property
    def sequences(self) -> dict[int, NDArray[np.int64]]:
        """Token ids of each sequence."""
        ...

    @property
    def precision(self) -> str:
        """The scheme in which it computed: bf16, f16 or f32."""
        ...

    def passes(self, sequence: int) -> NDArray[np.int64]:
        """[positions]: which pass each token was run in: it cannot see those of later ones."""
        ...

    def held(self, place: Place, sequence: int) -> Held | None:
        """None when nothing was recorded there for the sequence."""
        ...
