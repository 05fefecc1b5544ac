"""Serves requests on any layout of any model: it decides steps, and `run` has them carried out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence

from dayzero.errors import UsageError
from dayzero.runtime.pages import Done, Failure, Group, Ledger, Room, Step

from .request import CANCELLED, LENGTH, STOP, Request, RequestFailed, Stream
from .schedule import RECOMPUTE, Running, Schedule, Statistics

BUDGET = 512
"""Tokens of a step where nobody says how many."""
_HINT = "the other requests go on; send it again, or look at the model"


class Engine:
    """`run` carries out a step on all ranks, and gives what the one with logits found.

    `rooms`: all ranks' memories; `budget`: tokens of a step; `most`: sequences at a time; `preempt`: what becomes of
    a sequence whose blocks others need: "recompute", "host" or "disk"; `share`: find prompts that begin alike;
    `uniform`: as the pages have it; `parts`: calls that the prompts of a step are dealt out to, so that stages of a
    pipeline work on them at the same time.
    """

    def __init__(self, run: Callable[[Step], Done], groups: Sequence[Group], rooms: Iterable[Room], *,
                 block_tokens: int = 16, budget: int = BUDGET, most: int = 64, preempt: str = RECOMPUTE,
                 share: bool = True, uniform: bool = False, parts: int = 1) -> None:
        self._run = run
        self._ledger = Ledger(groups, rooms, block_tokens=block_tokens, share=share)
        self._schedule = Schedule(self._ledger, budget=budget, most=most, preempt=preempt, uniform=uniform,
                                  parts=parts)
        self._requests: dict[int, tuple[Request, Stream]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._begun: Step | None = None

    @property
    def statistics(self) -> Statistics:
        """Counts since the start."""
        return self._schedule.statistics

    @property
    def ledger(self) -> Ledger:
        """Who owns which block."""
        return self._ledger

    @property
    def running(self) -> list[Running]:
        """Sequences that have blocks."""
        return list(self._schedule.running)

    @property
    def idle(self) -> bool:
        """Whether every request is served."""
        return not self._requests

    def possible(self, tokens: int) -> bool:
        """Whether a request of so many tokens, new ones included, can be served."""
        return self._ledger.possible(tokens, self._schedule.budget)

    @property
    def full(self) -> bool:
        """Whether the last step left somebody out for want of blocks."""
        return self._schedule.full

    def submit(self, request: Request, work: Callable[[], bool] | None = None) -> Stream:
        """`work`: what going over the stream asks to work a little; None: this engine. Raises UsageError for a request
        that can never be served."""
        length = len(request.tokens) + request.max_new_tokens
        if not request.tokens or request.max_new_tokens < 1:
            raise UsageError("a request needs a token to begin with and one to generate", "give it some")
        if not self.possible(length):
            raise UsageError(f"{length} tokens do not fit into the cache", "give it more memory, or ask for fewer")
        with self._lock:
            number = next(self._numbers)
            stream = Stream(number, work or self.step, self._cancelled)
            self._requests[number] = (request, stream)
            self._schedule.add(Running(number, list(request.tokens), request.sampling))
        return stream

    def _cancelled(self, number: int) -> None:
        with self._lock:
            if number in self._requests:
                self._end(number, CANCELLED)

    def step(self) -> bool:
        """Work a little; False when there is nothing to do. Raises what `run` raises: requests stay as they were and
        can be submitted again, with their tokens so far."""
        with self._lock:
            step = self.begin()
            if step is None:
                return False
            self.finish(self._run(step))
            return True

    def begin(self) -> Step | None:
        """The next step, for who carries it out otherwise; None when there is nothing to do. The one before has to be
        finished."""
        with self._lock:
            self._begun = None if self._schedule.idle else self._schedule.plan()
            return self._begun

    def finish(self, done: Done) -> None:
        """What came of the step that was begun."""
        with self._lock:
            step, self._begun = self._begun, None
            if step is None:
                return
            self._schedule.commit(step, done)
            for failure in done.failures:
                if not failure.restoring and failure.sequence in self._requests:
                    self._fail(failure)
            for number, token in done.tokens.items():
                if number in self._requests:
                    self._give(number, token)

    def work(self) -> None:
        """Until every request is served."""
        while self.step():
            pass

    def _give(self, number: int, token: int) -> None:
        request, stream = self._requests[number]
        stream.give(token)
        if token in request.end:
            self._end(number, STOP)
        elif len(stream.tokens) == request.max_new_tokens:
            self._end(number, LENGTH)

    def _end(self, number: int, why: str) -> None:
        _, stream = self._requests.pop(number)
        stream.finish = why
        self._schedule.remove(number)

    def _fail(self, failure: Failure) -> None:
        _, stream = self._requests.pop(failure.sequence)
        stream.error = RequestFailed(failure.message, _HINT)
        self._schedule.remove(failure.sequence)
