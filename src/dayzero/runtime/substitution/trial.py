"""One module runs again, with what the run had at its borders, as far as one place: what would be there if the
reference were changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dayzero.schema.golden import Kind

from .borders import Borders, Call
from .places import Place, Recorded
from .rows import rows_of
from .substituted import Substitution

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
FAILURES = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError,
            AssertionError, NotImplementedError, OverflowError)
"""What a model's code raises when something is changed that it cannot run with."""


@dataclass(frozen=True)
class Case:
    """What the module was given for one sequence."""

    sequence: int
    length: int
    arguments: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class Hypothesis:
    """A change of the reference that may be what the run does."""

    name: str
    """Short: what kind of change, and of what."""
    words: str
    """What the run would do, as the end of a sentence that begins with `the run`."""
    change: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What is changed while the module runs."""
    arguments: Callable[[Arguments], Arguments] | None = None
    """What is changed in its arguments."""
    runs: Callable[[], list[torch.Tensor]] | None = None
    """Instead of both: what gives the values."""
    rank: int = 5
    """Of two that explain as much, the lower one is named."""


class _ReachedError(BaseException):
    """The place has been seen: the rest need not run. Not to be caught by a model's code."""


@dataclass
class Trial:
    """`module` is whose code computes the place, `by` which call of it."""

    module: nn.Module
    by: Call
    place: Place
    recorded: Recorded
    cases: Sequence[Case]
    kinds: Mapping[str, Kind]
    known: frozenset[str]
    """Names of the modules that were recorded."""
    _borders: list[Borders] = field(default_factory=list)
    """Of the run that is under way; shared by trials that are made of each other."""

    def values(self, hypothesis: Hypothesis | None = None) -> list[torch.Tensor] | None:
        """[positions, ...] for each case; None when the module cannot run so."""
        with contextlib.suppress(*FAILURES):
            if hypothesis is not None and hypothesis.runs is not None:
                return hypothesis.runs()
            return [self._run(case, hypothesis) for case in self.cases]
        return None

    def inside(self) -> bool:
        """Whether the module's own code is running, or that of a child that was not recorded."""
        for each in reversed(self._borders[-1].running) if self._borders else ():
            if each.name == self.by.name:
                return True
            if each.name in self.known:
                return False
        return False

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """While the module runs as a part of the whole model: `inside` tells its own code."""
        with self._watching(lambda place, by, tensor: tensor):
            self._borders[-1].running.append(self.by)
            yield

    def _run(self, case: Case, hypothesis: Hypothesis | None) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        substitution = Substitution(self.recorded, case.sequence, case.length, wanted=lambda _: False)

        def visit(place: Place, by: Call, tensor: torch.Tensor) -> torch.Tensor:
            if place == self.place:
                rows = rows_of(tensor, case.length)
                if rows is None:
                    raise ValueError("the place has no rows")
                seen.append(rows.detach().clone())
                raise _ReachedError
            return substitution(place, by, tensor)

        given = case.arguments, case.named
        if hypothesis is not None and hypothesis.arguments is not None:
            given = hypothesis.arguments(given)
        with torch.no_grad(), self._watching(visit), contextlib.suppress(_ReachedError), \
                hypothesis.change() if hypothesis is not None else nullcontext():
            self.module(*given[0], **given[1])
        if not seen:
            raise ValueError("the place was not reached")
        return seen[0]

    @contextlib.contextmanager
    def _watching(self, visit: Any) -> Iterator[None]:
        """Calls of the module itself are counted on from the one that it is about."""
        borders = Borders(self.module, visit, self.kinds, prefix=self.by.name)
        borders.expect(self.by)
        self._borders.append(borders)
        try:
            with borders:
                yield
        finally:
            self._borders.pop()


@contextlib.contextmanager
def exchanging(table: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """What a table holds is another thing for a while."""
    before = table[name]
    table[name] = value
    try:
        yield
    finally:
        table[name] = before


def setting(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    """An attribute of the object itself is another one for a while."""
    return exchanging(vars(owner), name, value)


def replacing(module: nn.Module, name: str, value: torch.Tensor) -> AbstractContextManager[None]:
    """A parameter or buffer has other values for a while."""
    if name in module._parameters:
        return exchanging(module._parameters, name, nn.Parameter(value, requires_grad=False))
    return exchanging(module._buffers, name, value)
