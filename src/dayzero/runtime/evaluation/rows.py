"""Texts as token ids, and which of them are scored. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dayzero.errors import NotPossible

from .scorer import Asked

Encode = Callable[[Sequence[str]], Sequence[tuple[int, ...]]]
"""Token ids of each text as it is, with what the tokenizer puts before every text."""


class Row(NamedTuple):
    """A context and a text."""

    ids: tuple[int, ...]
    """Of both."""
    first: int
    """First one that is scored: at least 1, nothing comes before the first of all."""


def rows_of(asked: Sequence[Asked], encode: Encode) -> list[Row]:
    """One for each. Context and text are read together, as a model meets them: where a token stands across the border
    it belongs to the text. Raises NotPossible for a text without a token to score."""
    whole = encode([each.context + each.text for each in asked])
    contexts = list({each.context for each in asked if each.context})
    before = {"": ()} | dict(zip(contexts, encode(contexts), strict=True))
    rows = [Row(ids, max(1, _shared(ids, before[each.context]))) for each, ids in zip(asked, whole, strict=True)]
    if short := next((each for each, row in zip(asked, rows, strict=True) if len(row.ids) <= row.first), None):
        raise NotPossible(f"no token of {short.text!r} can be scored after {short.context!r}", "ask a longer text")
    return rows


def _shared(ids: tuple[int, ...], context: tuple[int, ...]) -> int:
    """How many tokens the two begin with."""
    return next((number for number, pair in enumerate(zip(ids, context, strict=False)) if pair[0] != pair[1]),
                min(len(ids), len(context)))
