"""Gives names to installed libraries that they have no longer, where it is known what they meant (data/supplied.toml).

Only names that the shipped files use are given, and only where they are absent: what a library still has stays.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dayzero.data.supplied import Supplied, supplied

_NOTHING = object()


def supply(sources: Iterable[Path]) -> tuple[str, ...]:
    """Give what these files use. Returns `name: what was given` of each."""
    words = _words(sources)
    given = []
    for entry in supplied():
        if entry.words <= words and not _has(entry):
            _put(entry)
            given.append(f"{entry.name}: {entry.what}")
    return tuple(given)


def _words(sources: Iterable[Path]) -> set[str]:
    """Names, attributes and strings of the files; one that cannot be parsed fails when it is imported."""
    words: set[str] = set()
    for path in sources:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.arg | ast.keyword):
                words.add(node.arg or "")
            elif isinstance(node, ast.alias):
                words.add(node.name.rpartition(".")[2])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    return words


def _has(entry: Supplied) -> bool:
    owner = found(entry.owner)
    if owner is None and entry.owner.rpartition(".")[2][0].isupper():
        return True  # a class of a version later than the installed one: there is nothing that would look in it
    value: Any = getattr(owner, entry.attribute, _NOTHING)
    if entry.key or entry.argument:  # nothing can be given to what is not there
        return value is _NOTHING or (entry.key in value if entry.key
                                     else entry.argument in inspect.signature(value).parameters)
    return value is not _NOTHING


def found(dotted: str) -> Any:
    """What a dotted name stands for; None when there is no such thing."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                value = getattr(value, part)
        except (ImportError, AttributeError):
            continue
        return value
    return None


def _put(entry: Supplied) -> None:
    value, owner = found(entry.gives), found(entry.owner) or _module(entry.owner)
    if entry.key:
        getattr(owner, entry.attribute)[entry.key] = value
    elif entry.argument:
        setattr(owner, entry.attribute, value(getattr(owner, entry.attribute)))
    else:
        setattr(owner, entry.attribute, value)


def _module(dotted: str) -> types.ModuleType:
    """An empty module in the place of one that is gone."""
    module = types.ModuleType(dotted)
    sys.modules[dotted] = module
    parent, _, name = dotted.rpartition(".")
    setattr(importlib.import_module(parent), name, module)
    return module
