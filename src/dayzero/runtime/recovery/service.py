"""A controller with a thread of its own, so that requests may come from any thread at any time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from dayzero.errors import DayzeroError, NotPossible, StageError

from .controller import Controller
from .messages import Asked
from .requests import Answer

_JOIN = 30.0
"""Seconds that its last turn may take."""


class Service:
    """Serves from when it is made, with a controller that has started, until it is closed. For any thread."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._orders: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked, heard: Callable[[Answer], None]) -> Answer:
        """One more request; its number is no other one's. `heard` is called by this service's thread."""
        answer = Answer(asked, heard)
        self._order(lambda: self._controller.requests.add(answer))
        return answer

    def cancel(self, answer: Answer) -> None:
        """Nothing more comes of a request."""
        self._order(lambda: self._controller.requests.cancel(answer.asked.request))

    def settled(self, seconds: float) -> None:
        """Wait until all ranks have said what they held while they served, or others have asked for more; at most so
        long."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (not self._orders and (
                self._controller.idle or bool(self._controller.requests.open))), seconds)

    def close(self) -> None:
        """Serve no more. What is not over fails."""
        self._end()
        self._controller.crew.wake()
        self._thread.join(_JOIN)

    def _order(self, order: Callable[[], object]) -> None:
        with self._changed:
            if self._closed:
                raise StageError("the model is closed, or its controller has ended", "load it again")
            self._orders.append(order)
        self._controller.crew.wake()

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._follow()
                with suppress(DayzeroError, NotPossible):  # the requests know; another one is tried
                    self._controller.turn()
                with self._changed:
                    self._changed.notify_all()
        finally:
            self._end()
            self._follow()
            self._controller.requests.fail_all(StageError("the model was closed before that", "load it again"))

    def _follow(self) -> None:
        while self._orders:
            self._orders.popleft()()


Told = Callable[[int, int, str], None]
"""Takes (request, token, why it is the last: empty when it is not) as each comes."""


def served(controller: Controller, asked: Sequence[Asked], told: Told = lambda request, token, finish: None
           ) -> list[Answer]:
    """All that is asked, without a thread. Raises what one of them failed with, and as `Controller.turn`."""
    def heard(answer: Answer) -> None:
        if answer.tokens and answer.error is None:
            told(answer.asked.request, answer.tokens[-1], answer.finish)

    answers = [controller.submit(one, heard) for one in asked]
    while not controller.idle:
        controller.turn()
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return answers
