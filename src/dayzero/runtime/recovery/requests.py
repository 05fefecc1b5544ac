"""Requests and what they have led to. They are the controller's: nothing of them depends on a rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from dayzero import errors
from dayzero.errors import DayzeroError, NotPossible, StageError

from .messages import Asked, Failed, Logits, Token

CANCELLED = "cancelled"


@dataclass
class Answer:
    """What one request has led to so far."""

    asked: Asked
    """As it was submitted."""
    heard: Callable[[Answer], None] = lambda _: None
    """Called after each change, by the thread of the controller."""
    tokens: list[int] = field(default_factory=list)
    """Generated ids."""
    finish: str = ""
    """Why it is over: stop, length or cancelled; empty before, for logits, and when it failed."""
    logits: Logits | None = None
    """Where they were asked for."""
    error: DayzeroError | NotPossible | None = None
    """Why it failed."""
    began: float = field(default_factory=time.monotonic)
    """When it was submitted, or when weights were there if that was later,"""
    first: float = 0.0
    """when its first token came,"""
    last: float = 0.0
    """and its last."""

    @property
    def left(self) -> Asked:
        """What is still to be done, with the tokens that have come."""
        return msgspec.structs.replace(self.asked, tokens=(*self.asked.tokens, *self.tokens),
                                       left=self.asked.left - len(self.tokens))

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return bool(self.finish) or self.logits is not None or self.error is not None


class Requests:
    """All that are not over, and which of them members do not know of yet."""

    def __init__(self) -> None:
        self.open: dict[int, Answer] = {}
        """In the order in which they came."""
        self._new: list[int] = []
        self._cancelled: list[int] = []

    @property
    def tokens(self) -> tuple[int, int]:
        """(those that have come, those that may still come) of the requests that are not over."""
        return (sum(len(each.tokens) for each in self.open.values()),
                sum(each.asked.left - len(each.tokens) for each in self.open.values()))

    def add(self, answer: Answer) -> None:
        """One more."""
        self.open[answer.asked.request] = answer
        self._new.append(answer.asked.request)

    def cancel(self, request: int) -> None:
        """Nothing more comes of it."""
        if answer := self.open.get(request):
            self._cancelled.append(request)
            answer.finish = CANCELLED
            self._over(answer)

    def every(self) -> tuple[Asked, ...]:
        """All that are not over, for members that know of none."""
        self._new, self._cancelled = [], []
        return tuple(each.left for each in self.open.values())

    def news(self) -> tuple[tuple[Asked, ...], tuple[int, ...]]:
        """(new requests, cancelled ones) since the last time."""
        new = tuple(self.open[number].asked for number in self._new if number in self.open)
        cancelled, self._new, self._cancelled = tuple(self._cancelled), [], []
        return new, cancelled

    def token(self, news: Token) -> bool:
        """One more token; False when nobody waits for it."""
        answer = self.open.get(news.request)
        if answer is None:
            return False
        answer.tokens.append(news.token)
        answer.last = time.monotonic()
        answer.first = answer.first or answer.last
        answer.finish = news.finish
        self._over(answer) if news.finish else answer.heard(answer)
        return True

    def logits(self, news: Logits) -> None:
        """What a request for logits wants."""
        if answer := self.open.get(news.request):
            answer.logits = news
            self._over(answer)

    def fail(self, request: int, error: DayzeroError | NotPossible) -> None:
        """It cannot be served."""
        if answer := self.open.get(request):
            answer.error = error
            self._over(answer)

    def fail_all(self, error: DayzeroError | NotPossible) -> None:
        """None of them can be served."""
        for request in list(self.open):
            self.fail(request, error)

    def weights_are_there(self) -> None:
        """Times of requests of which nothing has come count from now."""
        for answer in self.open.values():
            if not answer.first:
                answer.began = time.monotonic()

    def _over(self, answer: Answer) -> None:
        del self.open[answer.asked.request]
        answer.heard(answer)


def error_of(told: Failed) -> DayzeroError | NotPossible:
    """What a member has raised."""
    kind = getattr(errors, told.error, None)
    if kind is NotPossible:
        return NotPossible(told.reason, told.hint)
    return (kind if isinstance(kind, type) and issubclass(kind, DayzeroError) else StageError)(told.reason, told.hint)
