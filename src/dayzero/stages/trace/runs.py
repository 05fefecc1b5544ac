"""Several runs of one built model: prefills, and decodes against the cache that a prefill left. Needs torch and
transformers.

When a run fails or contradicts itself while modules are left out, it is made again in full; what fails then is the
model's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from dayzero.data.operators import operators
from dayzero.runtime.library import LIBRARY_ERRORS
from dayzero.schema import ModelSpec

from . import capture
from .captured import Captured
from .repeats import InconsistentError
from .sites import Site
from .step import Step


class Runs:
    """Runs a model as often as it is asked to."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, *, repeats: bool = True) -> None:
        """`repeats` False: no module is left out, whatever is known of others."""
        self._model = model
        self._routed = max(((kind.experts, kind.top_k) for kind in spec.feed_forwards.values()), default=(0, 0))
        self._caches: dict[tuple[int, int], Any] = {}
        self.recorder = self._recorder(repeats)
        self._full = not repeats
        self._sites: Counter[Site] = Counter()
        self._missing: dict[str, None] = {}

    def run(self, step: Step, *, requested: bool = True) -> Captured:
        """The calls of a step. Raises what the model's code raises. The places that ask for values and what could not
        be traced are kept of requested steps only."""
        try:
            captured = self._run(step)
        except (InconsistentError, *LIBRARY_ERRORS):
            if self._full:
                raise
            self.recorder, self._full = self._recorder(False), True
            self._caches.clear()
            captured = self._run(step)
        if requested:
            self._sites.update(self.recorder.sites(captured))
            self._missing.update(dict.fromkeys(self.recorder.missing()))
        return captured

    def sites(self) -> dict[Site, int]:
        """Places that asked for a value in the requested steps, and how often."""
        return dict(self._sites)

    def missing(self) -> tuple[str, ...]:
        """What could not be traced in the requested steps."""
        return tuple(self._missing)

    def give_up(self, step: Step, error: BaseException) -> None:
        """Record that a requested step is missing."""
        self._missing[self.recorder.failure(step, error)] = None

    def _recorder(self, repeats: bool) -> capture.Recorder:
        return capture.Recorder(self._model, operators(), *self._routed, repeats=repeats)

    def _run(self, step: Step) -> Captured:
        if step.phase == "prefill":
            out, captured = self.recorder.run(step, lambda: capture.prefill(self._model, step.batch, step.tokens))
            self._caches = {(step.batch, step.tokens): out.past_key_values}
            return captured
        cache = self._caches.pop((step.batch, step.context), None)
        if cache is None:
            before = Step("prefill", step.batch, step.context)
            cache = self.recorder.run(before, lambda: capture.prefill(self._model, step.batch, step.context),
                                      record=False)[0].past_key_values
        return self.recorder.run(step, lambda: capture.decode(self._model, step.batch, cache))[1]


def capture_all(model: torch.nn.Module, spec: ModelSpec, steps: list[Step]) -> list[Captured]:
    """The calls of each step that the model's code can run; the others are left out."""
    runs, found = Runs(model, spec), []
    for step in steps:
        try:
            found.append(runs.run(step))
        except LIBRARY_ERRORS:
            continue
    return found
