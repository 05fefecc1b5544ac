"""What an operator call is to an engineer, from its name and from the place in the model where it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from dayzero.data.operators import Context, Operators

BIAS_FIRST = ("aten.addmm", "aten.addmv", "aten.baddbmm")
"""Operators whose first tensor is added to the product."""


class Place(NamedTuple):
    """Where an operator runs."""

    path: str
    """Dotted path of the innermost module; empty: the model itself."""
    functions: tuple[str, ...]
    """Functions between that module's forward and the operator, innermost first."""


def plain(op: str) -> str:
    """Name without the mark of the in-place variant: aten.add_ -> aten.add, aten.__and__ as it is."""
    return op[:-1] if op.endswith("_") and not op.endswith("__") else op


class Classifier:
    """Gives each call its kind; answers are kept, since a model asks for few different ones."""

    def __init__(self, table: Operators, types: Mapping[str, str]) -> None:
        """`types`: class name of each module, by its dotted path."""
        self._table = table
        self._types = types
        self._known: dict[tuple[str, Place], str] = {}
        self._routed: dict[str, bool] = {}

    def routed(self, path: str) -> bool:
        """Whether a module, or one that it is in, sends tokens to experts."""
        if path not in self._routed:
            self._routed[path] = any(_matches(self._table.routed, words) for _, words in self._outwards(path))
        return self._routed[path]

    def kind(self, op: str, place: Place, *, view: bool = False) -> str:
        """Kind of a call of `op` at `place`; `view` says that the result is a view of an argument."""
        if view or op in self._table.views:
            return "view"
        known = self._known.get((op, place))
        if known is None:
            known = self._known[op, place] = self._find(self._table.kind(plain(op)), place)
        return known

    def _find(self, base: str, place: Place) -> str:
        contexts = [context for context in self._table.contexts if base in context.takes]
        functions = [name.lower() for name in place.functions]
        for path, words in [(place.path, functions), *self._outwards(place.path)]:
            for context in contexts:
                if _matches(context.patterns, words) and self._beside(context, path):
                    return context.kind
        return base

    def _outwards(self, path: str) -> Iterable[tuple[str, list[str]]]:
        while path:
            yield path, [path.rpartition(".")[2].lower(), self._types.get(path, "").lower()]
            path = path.rpartition(".")[0]

    def _beside(self, context: Context, path: str) -> bool:
        return not context.beside or f"{path.rpartition('.')[0]}.{context.beside}" in self._types


def _matches(patterns: Iterable[str], words: Iterable[str]) -> bool:
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns)
