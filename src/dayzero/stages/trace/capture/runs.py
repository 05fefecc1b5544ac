"""Several runs of one built model: prefills, and decodes against the cache that a prefill left. Needs torch and
transformers.

What runs is the part that generates text, where the whole takes more than token ids.

When a run fails or contradicts itself while modules are left out, it is made again in full. When the first one fails
even so, it is made with a mask of sequences without padding: code that makes such a mask for itself may ask positions
how long it is, which have no values. What fails then is the model's.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from dayzero.data.operators import operators
from dayzero.runtime.library import LIBRARY_ERRORS
from dayzero.runtime.stand_ins import MissingStandIn
from dayzero.schema import ModelSpec
from dayzero.schema.graph import StandIn

from . import recorder as capture
from .captured import Captured
from .repeats import InconsistentError
from .sites import Site
from .step import Step


class Runs:
    """Runs a model as often as it is asked to."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, *, repeats: bool = True) -> None:
        """`repeats` False: no module is left out, whatever is known of others."""
        self._model = model
        self.part, self._entry = text_part(model)
        """The part that runs; empty: the whole."""
        self._routed = max(((kind.choices, kind.top_k) for kind in spec.feed_forwards.values()), default=(0, 0))
        self._caches: dict[tuple[int, int], Any] = {}
        self.recorder = self._recorder(repeats)
        self._full = not repeats
        self._ran = False
        self.masked = False
        """Whether the model is given a mask."""
        self._sites: Counter[Site] = Counter()
        self._stand_ins: Counter[tuple[str, str]] = Counter()
        self._missing: dict[str, None] = {}
        self._notes: list[str] = []

    def run(self, step: Step, *, requested: bool = True) -> Captured:
        """The calls of a step. Raises what the model's code raises. The places that ask for values and what could not
        be traced are kept of requested steps only."""
        try:
            captured = self._made(step)
        except LIBRARY_ERRORS as error:
            hopeless = isinstance(error, MissingStandIn) or self.masked
            if hopeless or not requested or (self._ran and step.phase == "prefill"):
                raise
            failed, self.masked = self.recorder, True
            self._again(repeats=True)
            try:
                captured = self._made(step)
            except LIBRARY_ERRORS:
                self.recorder, self.masked = failed, False
                if self.part or not (inner := inner_part(self._model)):
                    raise error from None
                self.part, self._entry = inner
                self._again(repeats=True)
                return self.run(step, requested=requested)
        self._ran = True
        if requested:
            self._keep(captured)
        return captured

    def beside(self, step: Step, forward: Callable[[], Any]) -> tuple[Any, Captured]:
        """Result and calls of something else than the text path. Raises what the model's code raises."""
        try:
            out, captured = self.recorder.run(step, forward)
        except InconsistentError:
            self._again(repeats=False)
            out, captured = self.recorder.run(step, forward)
        self._keep(captured)
        return out, captured

    def _keep(self, captured: Captured) -> None:
        self._sites.update(self.recorder.sites(captured))
        self._stand_ins.update(self.recorder.stand_ins(captured))
        self._missing.update(dict.fromkeys(self.recorder.missing()))

    def lack(self, entry: str) -> None:
        """Record an entry of what is missing."""
        self._missing[entry] = None

    def note(self, text: str) -> None:
        """Record what people should know of how it was run."""
        self._notes.append(text)

    def sites(self) -> dict[Site, int]:
        """Places that asked for a value in the requested steps, and how often."""
        return dict(self._sites)

    def stand_ins(self) -> tuple[StandIn, ...]:
        """What took the place of kernel libraries in the requested steps, in the order of the first calls."""
        return tuple(StandIn(call=call, op=op, times=times) for (call, op), times in self._stand_ins.items())

    def missing(self) -> tuple[str, ...]:
        """What could not be traced in the requested steps."""
        return tuple(self._missing)

    def notes(self) -> tuple[str, ...]:
        """What people should know of how it was run."""
        part = (f"its {self.part}, as the whole does not run on token ids alone",) if self.part else ()
        mask = ("given a mask, which it fails without",) if self.masked else ()
        return (*part, *mask, *self._notes)

    def give_up(self, step: Step, error: BaseException) -> None:
        """Record that a requested step is missing."""
        self._missing[self.recorder.failure(step, error)] = None

    def _recorder(self, repeats: bool) -> capture.Recorder:
        return capture.Recorder(self._model, operators(), *self._routed, repeats=repeats)

    def _again(self, *, repeats: bool) -> None:
        self.recorder, self._full = self._recorder(repeats), not repeats
        self._caches.clear()

    def _made(self, step: Step) -> Captured:
        """With what is known of others, else in full."""
        try:
            return self._run(step)
        except (InconsistentError, *LIBRARY_ERRORS) as error:
            if self._full or isinstance(error, MissingStandIn):
                raise
            self._again(repeats=False)
            return self._run(step)

    def _prefill(self, batch: int, tokens: int) -> Any:
        inputs = {"attention_mask": capture.whole_mask(batch, tokens)} if self.masked else {}
        return capture.prefill(self._entry, batch, tokens, **inputs)

    def _decode(self, batch: int, context: int, cache: Any) -> Any:
        inputs = {"attention_mask": capture.whole_mask(batch, context + 1)} if self.masked else {}
        return capture.decode(self._entry, batch, cache, **inputs)

    def _run(self, step: Step) -> Captured:
        if step.phase == "prefill":
            out, captured = self.recorder.run(step, lambda: self._prefill(step.batch, step.tokens))
            self._caches = {(step.batch, step.tokens): capture.cache_of(out)}
            return captured
        cache = self._caches.pop((step.batch, step.context), None)
        if cache is None:
            before = Step("prefill", step.batch, step.context)
            cache = capture.cache_of(self.recorder.run(before, lambda: self._prefill(step.batch, step.context),
                                                       record=False)[0])
        return self.recorder.run(step, lambda: self._decode(step.batch, step.context, cache))[1]


def text_part(model: torch.nn.Module) -> tuple[str, torch.nn.Module]:
    """Path and module of what generates text: the model itself, or a part of it that has a head where the whole cannot
    be called with token ids alone."""
    return (inner_part(model) if _needs(model) else None) or ("", model)


def inner_part(model: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """Path and module of a part that has a head and can be called with token ids alone; None: there is none."""
    from transformers import PreTrainedModel

    for path, module in model.named_modules():
        if path and isinstance(module, PreTrainedModel) and not _needs(module):
            with contextlib.suppress(*LIBRARY_ERRORS):
                if module.get_output_embeddings() is not None:
                    return path, module
    return None


def _needs(model: torch.nn.Module) -> bool:
    """Whether it must be given more than token ids, or does not take them."""
    parameters = inspect.signature(model.forward).parameters
    given = "input_ids" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return not given or any(
        each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        for name, each in parameters.items() if name != "input_ids")
