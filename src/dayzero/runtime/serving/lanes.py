"""Several engines that take turns on the stages of a pipeline, so that no stage waits for another one: while the last
stage computes a step of one lane the first computes one of the next lane. Requests are dealt out to lanes."""

from __future__ import annotations

from collections.abc import Sequence

from .engine import Engine
from .request import Request, Stream
from .worker import Begun, Worker


class Lanes:
    """`lanes`: an engine and the worker that carries out its steps, as many as there are stages. All ranks of the
    pipeline have the same ones, and are asked the same."""

    def __init__(self, lanes: Sequence[tuple[Engine, Worker]]) -> None:
        self._lanes = list(lanes)
        self._begun: list[Begun | None] = [None] * len(lanes)
        self._turn = 0

    @property
    def idle(self) -> bool:
        """Whether every request is served, and no step is under way."""
        return all(engine.idle for engine, _ in self._lanes) and not any(self._begun)

    def possible(self, tokens: int) -> bool:
        """As of an engine."""
        return all(engine.possible(tokens) for engine, _ in self._lanes)

    def submit(self, request: Request) -> Stream:
        """To each lane in turn. Raises UsageError as `Engine.submit`."""
        engine = self._lanes[self._turn % len(self._lanes)][0]
        self._turn += 1
        return engine.submit(request, work=self.step)

    def step(self) -> bool:
        """Finish the step that each lane has begun, and begin its next one; False when there is nothing to do."""
        busy = False
        for number, (engine, worker) in enumerate(self._lanes):
            if (begun := self._begun[number]) is not None:
                engine.finish(worker.finish(begun))
                busy = True
            step = engine.begin()
            self._begun[number] = None if step is None else worker.begin(step)
            busy = busy or step is not None
        return busy

    def work(self) -> None:
        """Until every request is served."""
        while self.step():
            pass
