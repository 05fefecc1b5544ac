"""Hypotheses about what a sequence carries over: another sequence's tokens before its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import torch

from dayzero.runtime.recording.values import slots
from dayzero.runtime.substitution.places import Held, Place, Recorded
from dayzero.runtime.substitution.rows import rows_of, token_axis
from dayzero.runtime.substitution.slots import changed
from dayzero.runtime.substitution.trial import Arguments, Case, Hypothesis, Trial

STATE = 1
_BLOCKS = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Over:
    """A run as it was; what is not so in it, others say."""

    recorded: Recorded

    @property
    def places(self) -> Iterable[Place]:
        """Those of the run."""
        return self.recorded.places

    @property
    def precision(self) -> str:
        """That of the run."""
        return self.recorded.precision

    @property
    def sequences(self) -> dict[int, Any]:
        """Those of the run."""
        return self.recorded.sequences

    def passes(self, sequence: int) -> Any:
        """Those of the run."""
        return self.recorded.passes(sequence)


@dataclass(frozen=True)
class Joined(Over):
    """Two sequences as one, `first` before `second`."""

    first: int
    second: int

    @property
    def sequences(self) -> dict[int, Any]:
        """The second one, with the first before it."""
        own = self.recorded.sequences
        return {self.second: np.concatenate([own[self.first], own[self.second]])}

    def passes(self, sequence: int) -> Any:
        """Those of the second, after those of the first."""
        one, other = self.recorded.passes(self.first), self.recorded.passes(self.second)
        return np.concatenate([one, other + one.max() + 1])

    def held(self, place: Place, sequence: int) -> Held | None:
        """Of both."""
        one, other = self.recorded.held(place, self.first), self.recorded.held(place, self.second)
        if one is None or other is None:
            return None
        return Held(np.concatenate([one.values, other.values]), np.concatenate([one.known, other.known]))


@dataclass(frozen=True)
class Mixed(Over):
    """A run in which a block of positions is that of another sequence."""

    other: int
    block: tuple[int, int]

    def held(self, place: Place, sequence: int) -> Held | None:
        """With the block of the other sequence."""
        own, theirs = self.recorded.held(place, sequence), self.recorded.held(place, self.other)
        if own is None or theirs is None or len(theirs.values) < self.block[1]:
            return own
        values, known, block = own.values.copy(), own.known.copy(), slice(*self.block)
        values[block], known[block] = theirs.values[block], theirs.known[block]
        return Held(values, known)


def of_others(trial: Trial, recorded: Recorded) -> Iterator[Hypothesis]:
    """Each sequence goes on with the state of the one that was run before it."""
    cases = list(trial.cases)
    if len(cases) < 2:
        return
    yield Hypothesis("state: of the sequence before", "goes on with the state of the sequence before it, which was not "
                     "reset", runs=lambda: _after(trial, recorded, cases), rank=STATE)


def of_blocks(trial: Trial, recorded: Recorded) -> Iterator[Hypothesis]:
    """What is cached of a run of positions is that of another sequence, in every pass but the first."""
    for one, other in permutations(trial.cases, 2):
        later = np.flatnonzero(recorded.passes(one.sequence) > recorded.passes(one.sequence).min())
        first = int(later[0]) if len(later) else 0
        for size in _BLOCKS:
            for start in range(0, min(first, other.length) - size + 1, size):
                yield Hypothesis(
                    "state: blocks exchanged", f"reads in sequence {one.sequence} what is cached of sequence "
                    f"{other.sequence} for positions {start} to {start + size - 1}: blocks of the cache are exchanged",
                    runs=partial(_exchanged, trial, recorded, (one, other), (start, start + size), first), rank=STATE)


def _exchanged(trial: Trial, recorded: Recorded, pair: tuple[Case, Case], block: tuple[int, int], first: int
               ) -> list[torch.Tensor]:
    """Both sequences of the pair have the other's block, from position `first` on."""
    found = []
    for case in trial.cases:
        plain = (replace(trial, cases=[case]).values() or [])[0]
        if case in pair:
            other = pair[1] if case is pair[0] else pair[0]
            mixed = Mixed(recorded, other.sequence, block)
            made = replace(trial, recorded=mixed, cases=[case]).values()
            if made is None or case.length <= first:
                raise ValueError("the module cannot run so")
            plain = torch.cat([plain[:first], made[0][first:]])
        found.append(plain)
    return found


def _after(trial: Trial, recorded: Recorded, cases: list[Case]) -> list[torch.Tensor]:
    found = [(trial.values() or [])[0]]
    for one, other in pairwise(cases):
        joined = Joined(recorded, one.sequence, other.sequence)
        given = _join((one.arguments, one.named), (other.arguments, other.named), one.length, other.length)
        case = Case(other.sequence, one.length + other.length, *given)
        made = replace(trial, recorded=joined, cases=[case]).values()
        if made is None:
            raise ValueError("the module cannot run on two sequences")
        found.append(made[0][one.length:])
    return found


def _join(one: Arguments, other: Arguments, first: int, second: int) -> Arguments:
    """Arguments for both: what has a row for each token one behind the other, masks that let all before be seen."""
    before = dict(slots(one))

    def change(slot: str, tensor: torch.Tensor) -> torch.Tensor:
        mine = before.get(slot)
        if mine is None:
            return tensor
        if tensor.dim() >= 2 and tuple(tensor.shape[-2:]) == (second, second) and tuple(mine.shape[-2:]) == (
                first, first):
            count = torch.arange(first + second)
            seen = count[None] <= count[:, None]
            if tensor.dtype == torch.bool:
                return seen.expand(*tensor.shape[:-2], -1, -1)
            low = torch.zeros(seen.shape, dtype=tensor.dtype).masked_fill(~seen, torch.finfo(tensor.dtype).min)
            return low.expand(*tensor.shape[:-2], -1, -1)
        rows, theirs = rows_of(mine, first), rows_of(tensor, second)
        if rows is None or theirs is None or rows.shape[1:] != theirs.shape[1:]:
            return tensor
        return torch.cat([mine, tensor], dim=token_axis(tuple(tensor.shape), second) or 0)
    made: Arguments = changed(other, change)
    return made
