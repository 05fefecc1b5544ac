"""Which operation a call belongs to, by the names of the modules and functions around it (data/operators.toml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from dayzero.data.operators import Context, Operators
from dayzero.stages.trace.capture.captured import Call

WHOLE = ("experts", "router", "state", "mask")
"""All that runs inside belongs to it: the outermost name counts."""
PARTS = ("norm", "rotary", "cache", "conv", "indexer")
"""Other operations may lie inside: the innermost name counts, and products with weights stay their own."""
FUNCTIONS_ONLY = ("state", "mask", "cache")
"""Words that mean it in a function's name, and too much in a module's."""


class Scope(NamedTuple):
    """A module or a function whose calls belong together."""

    kind: str
    """Which context of the table it is."""
    path: str
    """The module, or the one that the function runs in."""
    function: str = ""
    """Name of the function; empty: the module as such."""


class Scopes:
    """Finds the scope of calls; answers are kept."""

    def __init__(self, table: Operators, types: Mapping[str, str]) -> None:
        self._contexts = table.contexts
        self._types = types
        self._parents = {path.rpartition(".")[0] for path in types if path}
        self._blocks = {path.rpartition(".")[0] for path in self._parents if path}
        self._known: dict[tuple[str, tuple[str, ...]], tuple[Scope | None, Scope | None]] = {}

    def is_leaf(self, path: str) -> bool:
        """Whether a module has no modules inside."""
        return path not in self._parents

    def is_block(self, path: str) -> bool:
        """Whether a module has modules inside that have some themselves: a layer, not a projection or an activation."""
        return path in self._blocks

    def find(self, call: Call, *, weighted: bool) -> Scope | None:
        """The scope of a call; `weighted`: it is a product with a weight. None: names say nothing."""
        place = (call.place, call.functions)
        if place not in self._known:
            self._known[place] = self._outermost(*place), self._innermost(*place)
        whole, part = self._known[place]
        return whole or (None if weighted else part)

    def _outermost(self, place: str, functions: tuple[str, ...]) -> Scope | None:
        modules = (self._module(path, WHOLE) for path in reversed([*_outwards(place)]))
        inner = (self._function(place, name, WHOLE) for name in reversed(functions))
        return next((scope for scope in (*modules, *inner) if scope), None)

    def _innermost(self, place: str, functions: tuple[str, ...]) -> Scope | None:
        inner = (self._function(place, name, PARTS) for name in functions)
        modules = [self._module(path, PARTS) for path in _outwards(place)]
        found = next((scope for scope in (*inner, *modules) if scope), None)
        if found and found.kind == "indexer":  # its parts are one
            return next((scope for scope in reversed(modules) if scope and scope.kind == "indexer"), found)
        return found

    def _module(self, path: str, kinds: tuple[str, ...]) -> Scope | None:
        words = [path.rpartition(".")[2].lower(), self._types.get(path, "").lower()]
        for context in self._contexts:
            if context.kind in kinds and context.kind not in FUNCTIONS_ONLY and _matches(context, words) \
                    and self._beside(context, path) and (context.kind != "norm" or self.is_leaf(path)):
                return Scope(context.kind, path)
        return None

    def _function(self, place: str, name: str, kinds: tuple[str, ...]) -> Scope | None:
        for context in self._contexts:
            if context.kind in kinds and not context.beside and _matches(context, [name.lower()]):
                return Scope(context.kind, place, name)
        return None

    def _beside(self, context: Context, path: str) -> bool:
        return not context.beside or f"{path.rpartition('.')[0]}.{context.beside}" in self._types


def _outwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def _matches(context: Context, words: list[str]) -> bool:
    return any(fnmatchcase(word, pattern) for word in words for pattern in context.patterns)
