"""What operators are to an engineer, and the answers that a traced tensor gives; read from operators.toml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import msgspec


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the model that says more about an operator than its name."""

    kind: str
    """Kind that operators have there."""
    patterns: tuple[str, ...]
    """fnmatch patterns for the module's name, its class and the functions that run in it, in lower case."""
    takes: tuple[str, ...]
    """Kinds by name that the place changes; others keep theirs."""
    beside: str = ""
    """Name of a module that must have the same parent; empty: none is needed."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tensor without a value answers when the code asks for one."""

    op: str
    """Operator that asks."""
    kind: str
    """Name of the question: item, nonzero, equal."""
    answer: Literal["value", "rows"]
    """value: one number; rows: indices of the hits."""
    value: int = 0
    """The number."""
    after: dict[str, int] = {}
    """Operator that made the tensor -> another number."""


class Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of operators.toml."""

    whole: frozenset[str]
    """Recorded as one call and not split."""
    ignored: frozenset[str]
    """Questions about metadata; not recorded."""
    views: frozenset[str]
    """Move no data, beyond those whose schema says so."""
    picks: frozenset[str]
    """Read no more of their first argument than they write."""
    overwrites: frozenset[str]
    """In place: write all of their first argument without reading it."""
    puts: frozenset[str]
    """In place: write only the values that they are given."""
    kinds: dict[str, frozenset[str]]
    """Kind -> operators."""
    contexts: tuple[Context, ...]
    """In the order in which they are tried."""
    answers: tuple[Answer, ...]
    """One for each operator that asks for a value."""

    def kind(self, op: str) -> str:
        """Kind by the name alone; `other` when no list has it."""
        return next((kind for kind, names in self.kinds.items() if op in names), "other")

    def answer(self, op: str) -> Answer | None:
        """The answer for an operator that asks for a value; None: it does not ask."""
        return next((answer for answer in self.answers if answer.op == op), None)


@cache
def operators() -> Operators:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    text = resources.files("dayzero.data").joinpath("operators.toml").read_bytes()
    return msgspec.toml.decode(text, type=Operators)

