"""Runs the reference once over a sequence with everything that a run recorded in the place of what it computes itself.

At every border of a module the reference's own value is noted, computed of what the run had before, and then replaced
by what the run had there. So each noted value is wrong only by what was done since the borders before it: an error that
was made elsewhere, and all that followed of it, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from .borders import Borders, Call, Given
from .places import Place, Recorded
from .reference import Reference
from .rows import instead, perturbed, rows_of


@dataclass
class Computed:
    """What the reference computed of one sequence."""

    values: dict[Place, torch.Tensor] = field(default_factory=dict)
    """[positions, ...] as computed, before it was replaced; in the order of execution."""
    by: dict[Place, Call] = field(default_factory=dict)
    """Whose code computed it."""
    calls: dict[Call, Given] = field(default_factory=dict)
    """What was given in each call, with what the run had."""
    others: dict[Place, str] = field(default_factory=dict)
    """Places that were recorded and cannot be compared, and why."""


@dataclass(frozen=True)
class Perturbation:
    """Values that are taken are moved by up to a relative roundoff."""

    roundoff: float
    seed: int


class Substitution:
    """A visit of borders: notes, and replaces. `wanted`: places whose values are kept; None: all."""

    def __init__(self, recorded: Recorded, sequence: int, length: int, *, perturbation: Perturbation | None = None,
                 wanted: Callable[[Place], bool] | None = None) -> None:
        self._recorded, self._sequence, self._length = recorded, sequence, length
        self._perturbation, self._wanted = perturbation, wanted
        self._generator = torch.Generator().manual_seed(perturbation.seed if perturbation else 0)
        self.computed = Computed()

    def __call__(self, place: Place, by: Call, tensor: torch.Tensor) -> torch.Tensor:
        """What the run had, where it was recorded."""
        held = self._recorded.held(place, self._sequence)
        if held is None:
            return tensor
        rows = rows_of(tensor, self._length)
        theirs = instead(tensor, rows, held) if rows is not None else None
        self.computed.by[place] = by
        if rows is None or theirs is None:
            self.computed.others[place] = (f"the reference has {list(tensor.shape)} there, "
                                           f"the run {list(held.values.shape)}")
            return tensor
        if self._wanted is None or self._wanted(place):
            self.computed.values[place] = rows.detach().clone()
        if self._perturbation is not None:
            theirs = perturbed(theirs, self._perturbation.roundoff, self._generator)
        return theirs


def substituted(reference: Reference, recorded: Recorded, sequence: int, *, perturbation: Perturbation | None = None
                ) -> Computed:
    """One run over all tokens of a sequence, without a cache."""
    tokens = recorded.sequences[sequence]
    substitution = Substitution(recorded, sequence, len(tokens), perturbation=perturbation)
    with torch.no_grad(), Borders(reference.watched, substitution, reference.kinds, prefix=reference.name) as borders:
        reference.forward(torch.from_numpy(np.ascontiguousarray(tokens))[None])
        substitution.computed.calls = dict(borders.calls)
    return substitution.computed
