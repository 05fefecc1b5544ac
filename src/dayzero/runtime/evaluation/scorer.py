"""What a task asks of a model: how likely a text is after another one. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Asked(NamedTuple):
    """A text after another one."""

    context: str
    """What comes before; empty: nothing, then the first token of the text is not scored unless the tokenizer puts one
    before it."""
    text: str
    """What is scored."""


class Scored(NamedTuple):
    """How likely it is."""

    logprob: float
    """Natural logarithm of the probability of all scored tokens together."""
    tokens: int
    """Tokens that were scored."""
    greedy: bool | None
    """Whether each of them was the likeliest; None: not told."""


class Scorer(Protocol):
    """A model that answers."""

    name: str
    """Release, or model as the server names it."""
    engine: str
    """What runs it and how, in a few words."""
    digests: dict[str, str]
    """What identifies it: file or part -> SHA-256; empty when a server does not tell."""

    def score(self, asked: Sequence[Asked]) -> list[Scored]:
        """One for each, in order. Raises NotPossible when it cannot be told, StageError when what runs it fails."""
        ...
