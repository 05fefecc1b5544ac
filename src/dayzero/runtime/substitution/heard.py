"""What a reference itself computes, kept in memory like a recording; inputs for a layer that nobody has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .borders import Borders, Call
from .places import Held, Place, Recorded
from .reference import Reference
from .rows import instead, rows_of


class Inputs:
    """A run of which nothing is known but its tokens, and what one layer was given for each sequence [length, hidden
    size]."""

    def __init__(self, name: str, values: Mapping[int, NDArray[np.float32]], tokens: Mapping[int, NDArray[np.int64]],
                 precision: str) -> None:
        self._name, self._values, self.sequences, self.precision = name, values, dict(tokens), precision
        self.places: tuple[Place, ...] = ()

    def passes(self, sequence: int) -> NDArray[np.int64]:
        """One."""
        return np.zeros(len(self.sequences[sequence]), dtype=np.int64)

    def held(self, place: Place, sequence: int) -> Held | None:
        """The same for every stream of hidden states that the layer takes."""
        values = self._values.get(sequence)
        if values is None or place.name != self._name or place.what != "input" or "position" in place.slot:
            return None
        return Held(values, np.ones(len(values), dtype=bool))


class Heard:
    """Everything at the borders of a reference's modules, when it runs on what was recorded. A `Recorded`."""

    def __init__(self, reference: Reference, inputs: Recorded) -> None:
        self.sequences, self.precision = inputs.sequences, inputs.precision
        self._found: dict[tuple[Place, int], Held] = {}
        for sequence, tokens in self.sequences.items():
            self._run(reference, inputs, sequence, len(tokens))

    def _run(self, reference: Reference, inputs: Recorded, sequence: int, length: int) -> None:
        def visit(place: Place, by: Call, tensor: torch.Tensor) -> torch.Tensor:
            rows = rows_of(tensor, length)
            if rows is None:
                return tensor
            given = inputs.held(place, sequence)
            taken = instead(tensor, rows, given) if given is not None else None
            tensor = tensor if taken is None else taken
            kept: Any = rows_of(tensor, length)
            plain = kept.detach().float() if kept.is_floating_point() else kept.detach().long()
            self._found[place, sequence] = Held(plain.clone().numpy(), np.ones(length, dtype=bool))
            return tensor

        ids = torch.from_numpy(np.ascontiguousarray(self.sequences[sequence]))[None]
        with torch.no_grad(), Borders(reference.watched, visit, reference.kinds, prefix=reference.name):
            reference.forward(ids)

    @property
    def places(self) -> tuple[Place, ...]:
        """All that were seen."""
        return tuple(dict.fromkeys(place for place, _ in self._found))

    def passes(self, sequence: int) -> NDArray[np.int64]:
        """One."""
        return np.zeros(len(self.sequences[sequence]), dtype=np.int64)

    def held(self, place: Place, sequence: int) -> Held | None:
        """None when it was not seen."""
        return self._found.get((place, sequence))
