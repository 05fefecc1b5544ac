"""The whole reference with one change in all modules that are alike: what it would say if every layer did something
else. For runs of which nothing is known but what they said."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dayzero.backends.forwards import replaced

from .borders import Borders, Call
from .heard import Inputs
from .places import Place
from .reference import Reference
from .trial import FAILURES, Case, Hypothesis, Trial


@dataclass(frozen=True)
class Wide:
    """The same change of several modules."""

    name: str
    words: str
    parts: tuple[tuple[Trial, Hypothesis], ...]


class Everywhere:
    """A reference and the tokens that were run."""

    def __init__(self, reference: Reference, tokens: Mapping[int, NDArray[np.int64]]) -> None:
        self._model: Any = reference.watched
        self.tokens = tokens
        self.trials = self._heard(reference, min(tokens))
        """Every module that is called, with what it is given of the first sequence."""

    def _heard(self, reference: Reference, sequence: int) -> list[Trial]:
        nothing = Inputs("", {}, {}, "f32")
        with torch.no_grad(), Borders(self._model, lambda place, by, tensor: tensor, reference.kinds) as borders:
            reference.forward(self._ids(sequence))
        modules, length = reference.modules, len(self.tokens[sequence])
        known, first = frozenset(modules), dict[str, Call]()
        for call in borders.calls:
            first.setdefault(call.name, call)
        return [Trial(modules[name], call, Place(name, "output", "0", call.number), nothing,
                      [Case(sequence, length, borders.calls[call].arguments, borders.calls[call].named)],
                      reference.kinds, known) for name, call in first.items()]

    def _ids(self, sequence: int) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.tokens[sequence]))[None]

    def logprobs(self, sequence: int, change: Wide | None = None) -> NDArray[Any] | None:
        """[length, vocabulary] f32; None when the model cannot run so."""
        forwards: dict[torch.nn.Module, Callable[..., Any] | None] = {
            trial.module: _forward(trial, hypothesis) for trial, hypothesis in (change.parts if change else ())}
        with contextlib.suppress(*FAILURES), warnings.catch_warnings(action="ignore"), torch.no_grad(), \
                replaced(forwards):
            logits = self._model(input_ids=self._ids(sequence), use_cache=False).logits[0].float()
            said: NDArray[Any] = logits.log_softmax(-1).numpy()
            return said
        return None


def _forward(trial: Trial, hypothesis: Hypothesis) -> Callable[..., Any]:
    own = trial.module.forward

    def forward(*args: Any, **named: Any) -> Any:
        given = (args, named) if hypothesis.arguments is None else hypothesis.arguments((args, named))
        with trial.within(), hypothesis.change():
            return own(*given[0], **given[1])
    return forward


def everywhere(trials: Sequence[Trial], make: Callable[[Trial], Iterator[Hypothesis]],
               told: Callable[[str], str]) -> Iterator[Wide]:
    """The same hypotheses of several modules that are alike, each of all of them at once. `told`: a module's path as
    words have it."""
    for parts in zip(*(list(make(trial)) for trial in trials), strict=False):
        if len({each.name for each in parts}) == 1 and parts[0].runs is None:
            name = trials[0].by.name
            words = parts[0].words.replace(name, told(name)) if name else parts[0].words
            yield Wide(parts[0].name, words, tuple(zip(trials, parts, strict=True)))


def together(trials: Sequence[Trial], make: Callable[[Trial], Iterator[Hypothesis]]) -> Iterator[Wide]:
    """Hypotheses that say the same of any modules, as that a key of the config has another value."""
    found: dict[tuple[str, str], list[tuple[Trial, Hypothesis]]] = {}
    for trial in trials:
        for each in make(trial):
            found.setdefault((each.name, each.words), []).append((trial, each))
    for (name, words), parts in found.items():
        yield Wide(name, words, tuple(parts))
