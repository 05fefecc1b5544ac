"""Ranks that are threads of this process: real arithmetic between real parts, without process groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from dayzero.runtime.sharding.groups import Group


class ThreadGroup(Group):
    """One rank's view of a group of threads."""

    def __init__(self, size: int, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(size, rank)
        self._values, self._barrier = values, barrier

    def _exchange(self, value: torch.Tensor) -> list[torch.Tensor]:
        self._values[self.rank] = value
        self._barrier.wait()
        made = [each.clone() for each in self._values]
        self._barrier.wait()
        return made

    def _reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        every = torch.stack(self._exchange(value))
        return every.sum(0) if op == "sum" else every.amax(0) if op == "max" else every.amin(0)

    def _gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        return self._exchange(value)

    def _broadcast(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        return self._exchange(value)[owner]


def together(size: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What each of so many ranks gives. Raises the first error of any."""
    values, barrier = [None] * size, threading.Barrier(size, timeout=60)
    made: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            made[rank] = work(ThreadGroup(size, rank, values, barrier))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    return made
