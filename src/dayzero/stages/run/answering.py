"""The text of one request, as its tokens come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue

from dayzero.errors import StageError
from dayzero.runtime.recovery.requests import CANCELLED, Answer
from dayzero.runtime.recovery.service import Service
from dayzero.runtime.tokens import Tokens

_CUT = "\N{REPLACEMENT CHARACTER}"


class Writing:
    """Text of a growing row of tokens, up to the first of the texts that end it. A token alone need not be a character:
    what comes out are whole texts' ends."""

    def __init__(self, tokens: Callable[[], Tokens] | None, stop: Sequence[str] = (), *, pieces: bool = True) -> None:
        """`tokens`: gives the tokenizer; None: there is no text, only ids. `pieces`: whether text is wanted before all
        of it is there."""
        self._tokens, self._stop, self._pieces = tokens, tuple(stop), pieces
        self.ids: list[int] = []
        """Up to the one that ended it."""
        self.text = ""
        """What is certain so far."""
        self.stopped = False
        """Whether one of the stop texts has come."""

    def more(self, ids: Sequence[int], *, last: bool) -> str:
        """More tokens, and whether they are the last: the text that is certain now and was not before. One that may
        still become a stop text, or a character, is held back."""
        before = len(self.text)
        for number, each in enumerate(ids, 1):
            if self.stopped:
                break
            self.ids.append(each)
            if self._stop or (number == len(ids) and (last or self._pieces)):
                self._read(last=last and number == len(ids))
        if last and not ids and not self.stopped:
            self._read(last=True)
        return self.text[before:]

    def _read(self, *, last: bool) -> None:
        if self._tokens is None:
            return
        whole = self._tokens().decode(tuple(self.ids))
        found = [place for each in self._stop if (place := whole.find(each)) >= 0]
        if found:
            self.stopped, self.text = True, whole[:min(found)]
        elif last:
            self.text = whole
        elif not whole.endswith(_CUT):
            held = max((_begun(whole, each) for each in self._stop), default=0)
            self.text = whole[:max(len(self.text), len(whole) - held)]


def _begun(text: str, stop: str) -> int:
    """Characters at the end of a text with which a stop text may have begun."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class Answering:
    """One answer to one prompt. Going over it gives its text piece by piece; whether that is done or not, it is made.
    For one thread."""

    def __init__(self, service: Service, writing: Writing, changed: SimpleQueue[Answering] | None = None) -> None:
        """`changed`: where it puts itself whenever there is more; by default only it knows."""
        self._service, self._writing = service, writing
        self._changed: SimpleQueue[Answering] = changed or SimpleQueue()
        self._seen = 0
        self.finish = ""
        """Why it is over: stop, length or cancelled; empty before."""
        self.answer: Answer
        """What has come of it, with times."""

    def heard(self, answer: Answer) -> None:
        """For the service."""
        self.answer = answer
        self._changed.put(self)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Generated ids so far."""
        return tuple(self._writing.ids)

    @property
    def text(self) -> str:
        """Their text so far."""
        return self._writing.text

    def take(self) -> str:
        """The text that has come since the last time. Raises what the request failed with, after its text."""
        over = self.answer.done  # before its tokens, which come before that
        new = self.answer.tokens[self._seen:]
        self._seen += len(new)
        piece = "" if self.finish else self._writing.more(new, last=over)
        if self._writing.stopped and not self.finish:
            self.finish = "stop"
            if not over:
                self._service.cancel(self.answer)
        elif over:
            self.finish = self.finish or self.answer.finish
        if self.answer.error is not None and not self.finish:
            if not piece:
                raise self.answer.error
            self._changed.put(self)
        return piece

    def cancel(self) -> None:
        """Nothing more comes of it, and its part of the cache is free."""
        if not self.finish:
            self.finish = CANCELLED
            with suppress(StageError):  # all of it has ended
                self._service.cancel(self.answer)

    def __iter__(self) -> Iterator[str]:
        """Raises as `take`."""
        while not self.finish:
            self._changed.get()
            if piece := self.take():
                yield piece

    def result(self) -> str:
        """All of the text, when it is there. Raises as `take`."""
        for _ in self:
            pass
        return self.text
