"""What is asked for, and the stream in which it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dayzero.errors import StageError
from dayzero.schema import Sampling

STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"


class RequestFailed(StageError):  # noqa: N818
    """A request that could not be finished. The tokens before that have been given."""


@dataclass(frozen=True)
class Request:
    """Token ids to go on from. They may hold tokens that were generated before."""

    tokens: tuple[int, ...]
    max_new_tokens: int
    end: tuple[int, ...] = ()
    """Ids that end the text; the one that did is given."""
    sampling: Sampling = field(default_factory=Sampling)


class Stream:
    """The tokens of one request, as they come. Going over it has the engine work until there are some."""

    def __init__(self, number: int, work: Callable[[], bool], cancel: Callable[[int], None]) -> None:
        self.number, self._work, self._cancel = number, work, cancel
        self.tokens: list[int] = []
        """All so far."""
        self.finish = ""
        """Why it ended: "stop", "length" or "cancelled"; empty before."""
        self.error: RequestFailed | None = None
        self._new: deque[int] = deque()

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return bool(self.finish) or self.error is not None

    def give(self, token: int) -> None:
        """One more token."""
        self.tokens.append(token)
        self._new.append(token)

    def cancel(self) -> None:
        """Nothing more comes of it, and its blocks are free."""
        self._cancel(self.number)

    def __iter__(self) -> Iterator[int]:
        """Raises RequestFailed after the tokens of a request that failed."""
        while True:
            while self._new:
                yield self._new.popleft()
            if self.done:
                break
            self._work()
        if self.error is not None:
            raise self.error

    def result(self) -> list[int]:
        """All tokens, when they are there. Raises RequestFailed."""
        for _ in self:
            pass
        return self.tokens
