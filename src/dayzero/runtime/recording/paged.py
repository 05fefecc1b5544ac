"""A run through the serving engine: its cache in blocks, prompts in chunks, sequences in one call. What it goes on from
are the tokens that are given, whatever it would have chosen, so that it can be compared with any other run of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dayzero.errors import StageError
from dayzero.runtime.pages import Done, Row, Step
from dayzero.runtime.rank import Rank
from dayzero.runtime.rank_engine import cache_memory, lane
from dayzero.runtime.serving import Request
from dayzero.schema.golden import PADDING, Rows

Ids = Sequence[int]


class Paged:
    """Of one rank. All ranks have to make theirs together."""

    def __init__(self, rank: Rank, own: Mapping[int, Ids], every: Sequence[Ids], *, budget: int, decode: int,
                 free: int | None = None) -> None:
        """`own`: sequences of this replica by number, of `every` one; `budget`: most tokens of a step; `decode`: last
        tokens of each that are given one by one; `free`: bytes of the rank's device, None: of the host."""
        if rank.pipeline is not None:
            rank.pipeline.shares_logits = False
        lengths = [len(ids) + 1 for ids in every]
        self._engine, self._worker = lane(rank, lengths, max(1, len(own)), cache_memory(rank, free), budget=budget)
        self._numbers: dict[int, int] = {}
        self._coming: dict[int, Iterator[int]] = {}
        self._calls: deque[tuple[Row, ...]] = deque()
        for number, ids in own.items():
            cut = len(ids) - min(decode, len(ids) - 1)
            stream = self._engine.submit(Request(tuple(ids[:cut]), len(ids) - cut + 1))
            self._numbers[stream.number], self._coming[stream.number] = number, iter(ids[cut:])

    def rows(self, _given: Mapping[str, Any]) -> tuple[Rows, ...]:
        """What the rows of the call that begins are."""
        call = self._calls.popleft()
        longest = max(len(row.tokens) for row in call)
        return tuple(rows for row in call for rows in (
            Rows(sequence=PADDING, first=0, count=longest - len(row.tokens)),
            Rows(sequence=self._numbers[row.sequence], first=row.start, count=len(row.tokens))) if rows.count)

    def run(self) -> None:
        """All sequences. Raises StageError when a call fails."""
        while (step := self._engine.begin()) is not None:
            self._engine.finish(self._given(self._done(step)))

    def _done(self, step: Step) -> Done:
        self._calls.extend(step.batches)
        done = self._worker.run(step)
        if done.failures:
            raise StageError(f"the serving engine could not go on: {done.failures[0].message}",
                             "record without --paged, and look at the model")
        return done

    def _given(self, done: Done) -> Done:
        """With the tokens that come next, where there are some."""
        return msgspec.structs.replace(done, tokens={number: next(self._coming[number], token)
                                                     for number, token in done.tokens.items()})
