"""While a model is traced, operators that its file has as loops in Python are one operator each.

Such a loop runs thousands of small calls whose number depends on the tokens. A function is taken for one of them by its
name and its parameters, as the table says, not by the model that it belongs to.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dayzero.data.stand_ins import Fallback, stand_ins

from .finder import resolve
from .recording import counting

if TYPE_CHECKING:
    import torch


@contextmanager
def fallbacks(model: torch.nn.Module) -> Iterator[None]:
    """Replace such functions in the modules that define the model's classes, and where its modules hold them as
    attributes; put them back at the end."""
    undo: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Callable[..., Any] | None] = {}

    def swap(namespace: dict[str, Any], names: list[str]) -> None:
        for name in names:
            original = namespace[name]
            if id(original) not in made:
                made[id(original)] = _replacement(name, original)
            replacement = made[id(original)]
            if replacement is not None:
                undo.append((namespace, name, original))
                namespace[name] = replacement

    holders: dict[type, list[str]] = {}
    try:
        for module in model.modules():
            kind = type(module)
            if kind not in holders:
                holders[kind] = _functions(vars(module))
            swap(vars(module), holders[kind])
        for source in {kind.__module__ for kind in holders}:
            if source.partition(".")[0] != "torch" and source in sys.modules:
                swap(vars(sys.modules[source]), _functions(vars(sys.modules[source])))
        yield
    finally:
        for namespace, name, original in reversed(undo):
            namespace[name] = original


def _functions(namespace: dict[str, Any]) -> list[str]:
    return [name for name, value in namespace.items() if isinstance(value, FunctionType)]


def _replacement(name: str, original: Any) -> Callable[..., Any] | None:
    """The operator for a function that a rule matches. It takes what the function takes."""
    rule = _rule(name, original)
    if rule is None:
        return None
    adapter = counting(f"{original.__module__}:{original.__name__}", rule.op, resolve(rule.adapter))
    signature = inspect.signature(original)

    @functools.wraps(original)
    def one(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        given = dict(bound.arguments)
        return adapter(**given.pop(rest, {}), **given)

    return one


def _rule(name: str, original: Any) -> Fallback | None:
    parameters = set(inspect.signature(original).parameters)
    names = {name, original.__name__}
    return next((rule for rule in stand_ins().fallback
                 if parameters.issuperset(rule.parameters) and parameters.isdisjoint(rule.without)
                 and any(fnmatchcase(each, pattern) for each in names for pattern in rule.names)), None)
