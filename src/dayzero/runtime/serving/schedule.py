"""Which sequences run next: continuous batching with prompts in chunks, admission by memory, preemption.

Sequences that generate go first, the oldest before others. What is left of the step's tokens goes to prompts. When
blocks run out the youngest gives up its own: they leave the pool, or its tokens are computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dayzero.runtime.pages import Done, Ledger, Row, Step, Swapped
from dayzero.schema import Sampling

RECOMPUTE = "recompute"
_GROWING = 16
"""Blocks that sequences grow by, all together, while one of them ends: an answer's tokens over a block's."""
_SHORTEST = 8
"""Part of a step's tokens that a chunk has at least where there is no room for a longer one."""
ENOUGH = 64
"""Tokens that a call has to have for it to be worth its own time, and tokens of padding that are worth a call less."""


@dataclass
class Running:
    """A sequence and how far it is."""

    number: int
    tokens: list[int]
    sampling: Sampling
    computed: int = 0
    firsts: list[int] = field(default_factory=list)
    """Where its tables began when its blocks left the pool."""
    again: bool = False
    """Whether its tokens are computed again."""
    chain: list[bytes] = field(default_factory=list)
    """Names of its full blocks when it had `chained` tokens."""
    chained: int = 0

    @property
    def left(self) -> int:
        """Known tokens that are still to be computed."""
        return len(self.tokens) - self.computed


@dataclass
class Statistics:
    """Counts since the start."""

    steps: int = 0
    computed: int = 0
    adopted: int = 0
    """Tokens of prompts that were there already."""
    preempted: int = 0
    spilled: int = 0
    restored: int = 0


class Schedule:
    """`budget`: tokens of a step; `most`: sequences at a time; `preempt`: "recompute", or the tier where blocks go.
    `uniform`: rows with and without a past cannot be in one call."""

    def __init__(self, ledger: Ledger, *, budget: int, most: int, preempt: str, uniform: bool,
                 parts: int = 1) -> None:
        self.ledger, self.budget, self.most, self.preempt, self.uniform = ledger, budget, most, preempt, uniform
        self.parts = parts
        self.statistics = Statistics()
        self.running: list[Running] = []
        self.full = False
        """Whether the last step left somebody out for want of blocks."""
        self._waiting: deque[Running] = deque()
        self._spilled: deque[Running] = deque()
        self._forgotten: list[int] = []
        self._out: list[Swapped] = []
        self._back: list[Running] = []
        self._rows: dict[int, Row] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.running or self._waiting or self._spilled or self.ledger.changes or self._forgotten)

    def add(self, sequence: Running) -> None:
        """At the end of the queue."""
        self._waiting.append(sequence)

    def remove(self, number: int) -> None:
        """The sequence is finished, failed or cancelled."""
        if any(each.number == number for each in self._spilled):
            self._forgotten.append(number)
        self.running = [each for each in self.running if each.number != number]
        self._waiting = deque(each for each in self._waiting if each.number != number)
        self._spilled = deque(each for each in self._spilled if each.number != number)
        self.ledger.drop(number)

    # planning

    def plan(self) -> Step:
        """The next step. Without batches when there is nothing to compute."""
        self._out, self._back, self.full = [], [], False
        self._rows = {}
        self._decodes()
        self._prompts()
        self._return()
        self._admit()
        changes, forgotten = self.ledger.take_changes(), tuple(self._forgotten)
        self._forgotten = []
        self.statistics.steps += 1
        return Step(number=self.statistics.steps, spilled=tuple(self._out), forgotten=forgotten, changes=changes,
                    restored=tuple(Swapped(each.number, self.preempt, each.computed) for each in self._back),
                    batches=self._batches(self._rows.values()))

    @property
    def _left(self) -> int:
        """Tokens that the step can still take."""
        return self.budget - sum(len(row.tokens) for row in self._rows.values())

    def _decodes(self) -> None:
        for sequence in [each for each in self.running if each.left == 1]:
            if sequence in self.running and self._make_room(sequence, 1):
                self._add_row(sequence, 1)

    def _prompts(self) -> None:
        for sequence in [each for each in self.running if each.left > 1]:
            if sequence not in self.running or (count := self._chunk(sequence, self._left)) == 0:
                continue
            if sequence is self.running[0]:
                self._make_room(sequence, count)
            else:
                count = next((size for size in self._sizes(sequence, count)
                              if self._grow(sequence, size, spare=self._spare())), 0)
            if sequence in self.running and count:
                self._add_row(sequence, count)
            else:
                self.full = True

    def _make_room(self, sequence: Running, count: int) -> bool:
        """Blocks for `count` more tokens, from the youngest sequences if need be; False when it was the youngest."""
        while not self._grow(sequence, count):
            victim = self.running[-1]
            self._give_up(victim)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Running, count: int, spare: int = 0) -> bool:
        return self.ledger.grow(sequence.number, sequence.computed, sequence.computed + count, spare=spare)

    def _give_up(self, victim: Running) -> None:
        self.running.remove(victim)
        self._rows.pop(victim.number, None)
        self.statistics.preempted += 1
        if self.preempt == RECOMPUTE or victim.computed == 0:
            self._again(victim)
            return
        victim.firsts = self.ledger.spill(victim.number)
        self._out.append(Swapped(victim.number, self.preempt, victim.computed))
        self._spilled.appendleft(victim)
        self.statistics.spilled += 1

    def _again(self, victim: Running) -> None:
        self.ledger.drop(victim.number)
        victim.computed, victim.again = 0, True
        self._waiting.appendleft(victim)

    def _return(self) -> None:
        """Sequences whose blocks left, the oldest first. They go on with the next step."""
        while self._spilled and not self._out and len(self.running) < self.most:
            sequence = self._spilled[0]
            if not self.ledger.admits(sequence.computed + 1, 1, spare=self._spare()) or not (
                    self.ledger.revive(sequence.number, sequence.firsts, sequence.computed)):
                return
            self._back.append(self._spilled.popleft())
            self._start(sequence)
            self.statistics.restored += 1

    def _admit(self) -> None:
        """Others begin where there is room for the first chunk, unless one that has begun is left out."""
        while self._waiting and not (self.full or self._spilled or self._out) and self._left > 0 and (
                len(self.running) < self.most):
            sequence = self._first_waiting()
            if sequence is None:
                break
            known = len(sequence.tokens)  # who had to give up once begins when all of it has room
            size = next((size for size in self._sizes(sequence, self._left) if self.ledger.admits(
                known if sequence.again else min(known, size), size, spare=self._spare())), 0)
            if not size:
                self.full = True
                break
            sequence.computed = self.ledger.adopt(sequence.number, sequence.tokens)
            count = self._chunk(sequence, size)
            if not count or not self._grow(sequence, count):
                self.ledger.drop(sequence.number)
                sequence.computed = 0
                break
            self.statistics.adopted += sequence.computed
            self._waiting.remove(sequence)
            self._start(sequence)
            self._add_row(sequence, count)

    def _first_waiting(self) -> Running | None:
        """The first one whose beginning nobody computes just now: what is being computed need not be twice."""
        if not self.ledger.share:
            return self._waiting[0]
        coming = {key for each in self.running if each.left > 1
                  for key in self._chain(each)[each.computed // self.ledger.block_tokens:][-1 if self.uniform else 0:]}
        return next((each for each in self._waiting if coming.isdisjoint(self._chain(each))), None)

    def _chain(self, sequence: Running) -> list[bytes]:
        if len(sequence.tokens) != sequence.chained:
            sequence.chained, sequence.chain = len(sequence.tokens), self.ledger.chain(sequence.tokens)
        return sequence.chain

    def _start(self, sequence: Running) -> None:
        self.running.append(sequence)
        self.running.sort(key=lambda each: each.number)

    def _spare(self) -> int:
        """Blocks that stay free for those that run to grow into, until one of them ends: as many grow by a block in
        some steps as others need to end."""
        return min(len(self.running), _GROWING) + len(self.running) // 8

    def _chunk(self, sequence: Running, budget: int) -> int:
        """Tokens of a prompt to compute now: whole blocks, unless they end it. States are to be kept at the end of the
        last full block, where another sequence could go on."""
        size, left = self.ledger.block_tokens, sequence.left
        if self.uniform and self.ledger.share:
            boundary = (len(sequence.tokens) - 1) // size * size
            left = boundary - sequence.computed if sequence.computed < boundary else left
        if left <= budget:
            return left
        end = (sequence.computed + budget) // size * size - sequence.computed
        return end if end > 0 else max(budget, 0)

    def _sizes(self, sequence: Running, most: int) -> Iterator[int]:
        """Lengths of a chunk to try, the longest first, where memory is short; none is very short."""
        yield most
        while (most := most // 2) >= max(self.ledger.block_tokens, self.budget // _SHORTEST):
            if size := self._chunk(sequence, most):
                yield size

    def _add_row(self, sequence: Running, count: int) -> None:
        start = sequence.computed
        last = count == sequence.left
        self._rows[sequence.number] = Row(sequence.number, start, tuple(sequence.tokens[start:start + count]),
                                          sequence.sampling if last else None)

    def _batches(self, rows: Iterable[Row]) -> tuple[tuple[Row, ...], ...]:
        """Rows by how many tokens they have, those with a few less together with others; many tokens in several
        calls."""
        found: dict[tuple[int, bool], list[Row]] = {}
        for row in rows:
            found.setdefault((len(row.tokens), self.uniform and row.start == 0), []).append(row)
        batches = found.values() if self.uniform else _merged(found.values())
        return tuple(call for batch in batches for call in self._calls(batch))

    def _calls(self, batch: list[Row]) -> Iterator[tuple[Row, ...]]:
        """The rows in `parts` calls where each has enough to do, by rows or, where states allow it, by tokens."""
        new, least = len(batch[0].tokens), len(batch[-1].tokens)
        count = min(self.parts, new * len(batch) // ENOUGH)
        if count <= 1 or new == 1:
            yield tuple(batch)
        elif len(batch) >= count:
            size = -(-len(batch) // count)
            yield from (tuple(batch[first:first + size]) for first in range(0, len(batch), size))
        elif self.uniform or least < new:
            yield tuple(batch)
        else:
            size = -(-new // count // self.ledger.block_tokens) * self.ledger.block_tokens
            for first in range(0, new, size):
                last = first + size >= new
                yield tuple(Row(row.sequence, row.start + first, row.tokens[first:first + size],
                                row.sampling if last else None) for row in batch)

    # after the step

    def commit(self, step: Step, done: Done) -> None:
        """The step was carried out. Failed sequences are the caller's to remove."""
        lost = {failure.sequence for failure in done.failures}
        known = {each.number: each for each in self.running}
        for failure in done.failures:
            if failure.restoring and (sequence := known.get(failure.sequence)):
                self.running.remove(sequence)
                self._again(sequence)
        for row in (row for batch in step.batches for row in batch):
            if row.sequence in lost or (sequence := known.get(row.sequence)) is None:
                continue
            sequence.computed = row.end
            self.statistics.computed += len(row.tokens)
            self.ledger.offer(row.sequence, sequence.tokens, sequence.computed)
            if self.uniform and len(row.tokens) > 1 and sequence.computed % self.ledger.block_tokens == 0:
                self.ledger.snapshot(row.sequence)
            self.ledger.trim(row.sequence, sequence.computed)
            if row.sampling is not None and row.sequence in done.tokens:
                sequence.tokens.append(done.tokens[row.sequence])


def _merged(batches: Iterable[list[Row]]) -> list[list[Row]]:
    """Rows of one length each, with fewer batches: the longest row of each first."""
    made: list[list[Row]] = []
    for batch in sorted(batches, key=lambda each: -len(each[0].tokens)):
        if made and len(batch) * (len(made[-1][0].tokens) - len(batch[0].tokens)) <= ENOUGH:
            made[-1] += batch
        else:
            made.append(batch)
    return made
