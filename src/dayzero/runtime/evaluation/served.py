"""A server as a scorer, by the logprobs that it gives of given tokens. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.runtime.endpoint import Endpoint
from dayzero.runtime.tokens import Tokens

from .rows import Row, rows_of
from .scorer import Asked, Scored

AT_ONCE = 8
"""Requests that are under way at the same time: servers compute them together."""
_WAITING = 2 * AT_ONCE
"""Requests whose answers have not been looked at, at most: after a refusal no more are begun."""


class ServedScorer:
    """`tokens`: the tokenizer of the release that is served; None: the server's own."""

    def __init__(self, endpoint: Endpoint, tokens: Tokens | None, *, progress: Progress = SILENT) -> None:
        self.endpoint, self.tokens, self.progress = endpoint, tokens, progress
        self.name, self.engine = endpoint.model, f"server {endpoint.server.url}, {endpoint.way.name}"
        self.digests: dict[str, str] = {}

    def score(self, asked: Sequence[Asked]) -> list[Scored]:
        """One for each, in order. Raises EndpointError, NotPossible."""
        rows, found = rows_of(asked, self._encode), list[Scored]()
        pool, going = ThreadPoolExecutor(AT_ONCE), deque[Future[Scored]]()
        try:
            for row in (*rows, *[None] * _WAITING):
                if row is not None:
                    going.append(pool.submit(self._one, row))
                if going and (row is None or len(going) == _WAITING):
                    found.append(going.popleft().result())
                    self.progress.update(f"{self.name}: texts", len(found), len(rows))
        finally:
            pool.shutdown(cancel_futures=True)
        return found

    def _one(self, row: Row) -> Scored:
        told = self.endpoint.score(row.ids, top=1)
        own, best = told.logprobs[row.first - 1:], told.top_logprobs[row.first - 1:, 0]
        return Scored(float(own.sum()), len(own), bool((own >= best).all()) if np.isfinite(best).all() else None)

    def _encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        if self.tokens is not None:
            return list(self.tokens.encode_plain(texts))
        found = [self.endpoint.tokenize(text) for text in texts]
        if any(each is None for each in found):
            raise NotPossible("the server does not tell token ids", "name the release whose tokenizer it uses with "
                              "--tokenizer")
        return [each for each in found if each is not None]
