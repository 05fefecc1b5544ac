"""What is to follow a prompt: how much, how it is chosen, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dayzero.errors import ReleaseError, UsageError
from dayzero.schema import ModelSpec, Sampling

from .limits import check_seed

GREEDY = Sampling()
_MOST = 2**31
_CORRECT = "correct it in generation_config.json, or leave the release's sampling out"


@dataclass(frozen=True)
class Wanted:
    """Of each prompt."""

    max_new_tokens: int = 32
    """Tokens at most."""
    sampling: Sampling = GREEDY
    """How each token is chosen; by default it is the likeliest."""
    released: bool = False
    """Whether it is chosen as the release's generation config says; `sampling` has the seed then."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer and are no part of it."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end an answer, beside those of the release."""
    samples: int = 1
    """Answers to each prompt; each has a seed of its own."""

    def of_sample(self, number: int) -> Sampling:
        """How the tokens of an answer to a prompt are chosen."""
        taken = self.sampling
        return Sampling(taken.temperature, taken.top_k, taken.top_p, taken.seed + number)

    def checked(self, model: ModelSpec) -> Wanted:
        """Itself. Raises UsageError for what cannot be."""
        taken = self.sampling
        check_seed(taken.seed, max(1, self.samples))
        for wrong, what, hint in (
                (self.max_new_tokens < 1, f"not a number of tokens: {self.max_new_tokens}",
                 "give --max-new-tokens of 1 or more"),
                (self.samples < 1, f"{self.samples} samples", "give --samples of 1 or more"),
                (not 0 <= taken.temperature < float("inf"), f"no temperature: {taken.temperature}",
                 "give --temperature of 0 for the likeliest tokens, or a finite number above it"),
                (not 0 <= taken.top_k < _MOST, f"top_k is {taken.top_k}", "give --top-k of 0 for all tokens, or more"),
                (not 0 < taken.top_p <= 1, f"top_p is {taken.top_p}", "give --top-p of more than 0, and at most 1"),
                (taken.temperature == 0 and (taken.top_k > 0 or taken.top_p < 1),
                 "top_k and top_p say nothing at temperature 0", "give --temperature of more than 0"),
                (self.samples > 1 and taken.temperature == 0 and not self.released,
                 "several samples at temperature 0 are all the same", "give --temperature of more than 0"),
                (self.released and taken.temperature > 0, "the release's sampling and a temperature say two things",
                 "leave one of them out"),
                ("" in self.stop, "an empty text would end every answer", "give a stop text"),
                (not all(0 <= each < model.vocab_size for each in self.stop_tokens),
                 f"stop tokens are not all of the model's: 0 to {model.vocab_size - 1}", "give ids of this model")):
            if wrong:
                raise UsageError(what, hint)
        return self

    def resolved(self, stated: Mapping[str, Any]) -> Wanted:
        """With the sampling that the release's generation config has `stated`, if that is wanted. Raises ReleaseError
        for one that cannot be."""
        return replace(self, sampling=_stated(stated, self.sampling.seed), released=False) if self.released else self


def _stated(stated: Mapping[str, Any], seed: int) -> Sampling:
    """What is not stated leaves all tokens. Without do_sample it is the likeliest token."""
    if not stated.get("do_sample"):
        return Sampling(seed=seed)
    values = {name: other if (found := stated.get(name)) is None else found
              for name, other in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0))}
    if any(type(each) not in (int, float) for each in values.values()):
        raise ReleaseError(f"the release's sampling is no numbers: {values}", _CORRECT)
    made = Sampling(float(values["temperature"]), int(values["top_k"]), float(values["top_p"]), seed)
    if not (0 <= made.temperature < float("inf") and made.top_k >= 0 and 0 < made.top_p <= 1):
        raise ReleaseError(f"the release's sampling cannot be: {values}", _CORRECT)
    return made
