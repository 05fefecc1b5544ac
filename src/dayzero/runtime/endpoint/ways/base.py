"""What a form is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any, NamedTuple

from dayzero.runtime.endpoint.http import Server

Row = tuple[float, list[tuple[int, float]]]
"""Logprob of the token, and (token id, logprob) of the likeliest ones, best first; an id of -1 is not told."""
MISSING = nan
"""Stands for a logprob that the server leaves out."""


class OtherTokens(Exception):  # noqa: N818  (a finding about an answer)
    """The server looked at other tokens than those that were given; the text says at which."""


class Question(NamedTuple):
    """What a server is asked."""

    server: Server
    model: str
    tokens: Sequence[int]
    """At least two."""
    top: int
    """How many of the likeliest."""
    text: Callable[[Sequence[int]], str] | None = None
    """Gives the text of tokens, for servers that take nothing else; None: nobody knows it."""


class Answer(NamedTuple):
    """Of one prompt."""

    tokens: list[int]
    """Token ids as the server saw them; -1 where it does not tell."""
    rows: list[Row]
    """Of all tokens but the first, which nothing comes before."""


class Way(NamedTuple):
    """A form."""

    name: str
    ask: Callable[[Question], Answer]
    """Raises Refused and EndpointError, OtherTokens, and ValueError, TypeError, LookupError or
    msgspec.ValidationError for an answer of another form."""


def counted(answer: Any, tokens: Sequence[int]) -> None:
    """Where the server counts the tokens of the prompt, they are those that were given. Raises OtherTokens."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    seen = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(seen, int):
        same_count(seen, tokens)


def same_count(seen: int, tokens: Sequence[int]) -> None:
    """Raises OtherTokens unless the server saw as many."""
    if seen != len(tokens):
        raise OtherTokens(f"it saw {seen} tokens where {len(tokens)} were given")


def ranked(pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(token id, logprob), best first."""
    return sorted(pairs, key=lambda each: -each[1])
