"""A run through the serving engine in which every sequence's cache leaves the pool after each step, and comes back into
other blocks before the next: what a reload does to it shows in all that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dayzero.errors import StageError
from dayzero.runtime.pages import Step, Swapped
from dayzero.runtime.pages.saved import Shelf
from dayzero.runtime.rank import Rank

from .paged import Ids, Paged


class Reloaded(Paged):
    """Of one rank."""

    def __init__(self, rank: Rank, own: Mapping[int, Ids], every: Sequence[Ids], *, tier: str, folder: Path,
                 budget: int, decode: int) -> None:
        """`tier`: host, or disk, which is `folder`."""
        super().__init__(rank, own, every, budget=budget, decode=decode)
        self._tier, self.reloads = tier, 0
        self._worker._pages.shelf = Shelf(folder)

    def run(self) -> None:
        """All sequences. Raises StageError when a call or a reload fails."""
        while (step := self._engine.begin()) is not None:
            self._engine.finish(self._given(self._done(step)))
            self._reload(step.number)
        self._worker._pages.shelf.close()

    def _reload(self, number: int) -> None:
        """By the ledger, as sequences whose blocks others need leave and return."""
        ledger = self._engine.ledger
        held = [each for each in self._engine.running if each.computed]
        firsts = [ledger.spill(each.number) for each in held]
        out = tuple(Swapped(each.number, self._tier, each.computed) for each in held)
        self._worker.run(Step(number=number, spilled=out, changes=ledger.take_changes()))
        for each, first in zip(reversed(held), reversed(firsts), strict=True):  # so that others get its blocks
            if not ledger.revive(each.number, first, each.computed):
                raise StageError("a cache that left has no room to come back", "record fewer sequences")
        done = self._worker.run(Step(number=number, changes=ledger.take_changes(), restored=out))
        if done.failures:
            raise StageError(f"a cache did not come back: {done.failures[0].message}", "look at the disk")
        self.reloads += len(out)
