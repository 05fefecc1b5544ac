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
    """Operator that asks; `mask` for a mask among indices."""
    kind: str
    """Name of the question: item, nonzero, equal ..."""
    answer: Literal["value", "rows", "chosen", "host", "distinct", "bins", "repeated"]
    """value: one number; rows: positions of the hits; chosen: one value for each hit; host: all values; distinct:
    different values; bins: a count for each; repeated: positions, each as often as a count says."""
    value: int = 0
    """The number."""
    after: dict[str, int] = {}
    """Operator that made the tensor -> another number."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How source text asks for the value of a tensor."""

    kind: str
    """As in `Answer`."""
    methods: tuple[str, ...] = ()
    """Methods without counterpart on other objects, that are called on a tensor."""
    functions: tuple[str, ...] = ()
    """Functions by their dotted name; with one argument only where a number is given as `name/1`."""
    tests: tuple[str, ...] = ()
    """Methods and functions that give a truth, where a branch or loop depends on it."""


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
    masked: frozenset[str]
    """Take masks among the indices of their second argument; how many elements those pick is answered first."""
    routed: tuple[str, ...]
    """fnmatch patterns, as in `Context`, of modules that send tokens to experts."""
    sources: tuple[Source, ...]
    """How source text asks for values."""
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

