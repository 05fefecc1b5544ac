"""A release that is loaded here as a scorer, whatever its layout: with its own tokenizer. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from dayzero.progress import SILENT, Progress
from dayzero.runtime.tokens import Tokens

from .rows import Row, rows_of
from .scorer import Asked, Scored

ROWS = 8
"""Texts whose logits are held at the same time."""


class Model(Protocol):
    """What `dayzero.load` gives."""

    def forward(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """[tokens, vocabulary] in f32 of each row of token ids."""
        ...

    def continued(self, rows: Sequence[Sequence[int]], *, max_new_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The likeliest tokens after each row."""
        ...


class ModelScorer:
    """Scores texts with a model and the tokenizer of its release."""

    def __init__(self, model: Model, tokens: Tokens, name: str, engine: str, *, digests: dict[str, str] | None = None,
                 progress: Progress = SILENT) -> None:
        self.model, self.tokens, self.name, self.engine = model, tokens, name, engine
        self.digests, self.progress = digests or {}, progress

    def score(self, asked: Sequence[Asked]) -> list[Scored]:
        """One for each, in order. Raises NotPossible for a text without a token to score."""
        rows, found = rows_of(asked, self.tokens.encode_plain), list[Scored]()
        for start in range(0, len(rows), ROWS):
            self.progress.update(f"{self.name}: texts", start, len(rows))
            some = rows[start:start + ROWS]
            logits = self.model.forward([row.ids for row in some])
            found += [_one(each, row) for each, row in zip(logits, some, strict=True)]
        return found

    def generate(self, prompt: str, stop: Sequence[str], most: int) -> str:
        """What greedy decoding writes after the prompt, up to a stop text or `most` tokens."""
        [ids] = self.tokens.encode_plain([prompt])
        [written] = self.model.continued([ids], max_new_tokens=most)
        text = self.tokens.decode(written)
        return text[:min([len(text), *(place for each in stop if each and (place := text.find(each)) >= 0)])]


def _one(logits: torch.Tensor, row: Row) -> Scored:
    """[tokens, vocabulary] -> the score of what is asked of the row."""
    told = torch.log_softmax(logits[row.first - 1:len(row.ids) - 1], -1)
    ids = torch.tensor(row.ids[row.first:])
    return Scored(float(told.gather(1, ids[:, None]).double().sum()), len(ids), bool((told.argmax(-1) == ids).all()))
