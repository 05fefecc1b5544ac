"""Runs the reference, in f32 and in the run's precision, with what a run recorded in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from .heard import Inputs
from .matrices import matrices
from .places import Place, Recorded
from .reference import Reference, reference
from .rows import perturbed
from .substituted import Computed, Perturbation, substituted
from .trial import Case, Trial

_SMALL = 30_000_000
"""Parameters."""


class Runner:
    """A reference that can be run on what was recorded, as a whole or one module of it."""

    def __init__(self, truth: Reference, coarse: Reference | None) -> None:
        self.truth, self._coarse = truth, coarse
        self.kinds, self.modules = truth.kinds, truth.modules

    def run(self, recorded: Recorded, sequence: int, *, perturbation: Perturbation | None = None) -> Computed:
        """In f32."""
        return substituted(self.truth, recorded, sequence, perturbation=perturbation)

    def coarse(self, recorded: Recorded, sequence: int) -> Computed | None:
        """In the precision of the run; None where that is f32."""
        return None if self._coarse is None else substituted(self._coarse, recorded, sequence)

    def again(self, recorded: Recorded, sequence: int, computed: Computed, place: Place, perturbation: Perturbation
              ) -> torch.Tensor | None:
        """What a module gives at a place when what it is given is perturbed; None when it cannot be run alone."""
        by = computed.by[place]
        given = computed.calls.get(by)
        if given is None:
            return None
        generator = torch.Generator().manual_seed(perturbation.seed)

        def move(value: Any) -> Any:
            return perturbed(value, perturbation.roundoff, generator) if isinstance(value, torch.Tensor) else value
        length = len(recorded.sequences[sequence])
        case = Case(sequence, length, tuple(map(move, given.arguments)),
                    {name: move(each) for name, each in given.named.items()})
        trial = Trial(given.module, by, place, Inputs("", {}, {}, "f32"), [case], self.kinds, frozenset())
        found = trial.values()
        return found[0] if found else None

    def change(self, names: Collection[str], of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Give modules other matrices for good, made of their own, in both precisions; shared ones once."""
        for each in filter(None, (self.truth, self._coarse)):
            modules, seen = each.modules, set[int]()
            for module, key in ((modules[name], key) for name in names for key in matrices(modules[name])):
                parameter = module._parameters[key]
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    parameter.data = of(parameter.data)

    def trial(self, recorded: Recorded, computed: dict[int, Computed], place: Place) -> Trial | None:
        """The module whose code computes a place, ready to be run on trial; None when it cannot be run alone."""
        cases = []
        by = next(each.by[place] for each in computed.values() if place in each.by)
        for sequence, each in computed.items():
            given = each.calls.get(by)
            if given is not None and place in each.by:
                cases.append(Case(sequence, len(recorded.sequences[sequence]), given.arguments, given.named))
        if not cases:
            return None
        known = frozenset(each.name for each in recorded.places)
        return Trial(self.modules[by.name], by, place, recorded, cases, self.kinds, known)


@contextlib.contextmanager
def threads_for(module: torch.nn.Module) -> Iterator[None]:
    """One thread while a small module runs again and again: starting more takes longer than what they do."""
    before = torch.get_num_threads()
    small = sum(each.numel() for each in module.parameters()) < _SMALL
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def runner(root: Path, precision: str, *, own: bool = False, threads: int = 4) -> Iterator[Runner]:
    """A release's. Raises NotPossible when it cannot be built or does not fit, ReleaseError when files are missing."""
    with contextlib.ExitStack() as stack:
        truth = stack.enter_context(reference(root, own=own, threads=threads))
        coarse = None if precision == "f32" else stack.enter_context(
            reference(root, precision, own=own, threads=threads))
        yield Runner(truth, coarse)
