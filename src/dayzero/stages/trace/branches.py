"""Places in source text where control flow depends on the values of tensors, whether they run or not; and one list of
those and of the places that asked while running.

The source of the classes that were built is read: their `forward`, and what it reaches in the same file. No torch.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dayzero.data.operators import Operators, operators
from dayzero.runtime.library import file_of
from dayzero.schema import ControlFlow

from .capture.sites import OURS, Site

TESTED = (ast.If, ast.While, ast.IfExp, ast.Assert)
MOST = 4
"""Most different answers of one place that are told."""


class Spot(NamedTuple):
    """A place in source text that asks for a value."""

    file: str
    first: int
    """Line of its statement's expression."""
    last: int
    kind: str


def seen(model: Any) -> tuple[Spot, ...]:
    """Places in the source of the model's classes, by file and line; a class whose source is not there has none."""
    classes: dict[str, set[str]] = defaultdict(set)
    for module in model.modules():
        for each in type(module).__mro__:
            classes[each.__module__].add(each.__name__)
    built = {type(module).__module__ for module in model.modules()}
    spots: dict[Spot, None] = {}
    for name in sorted(built):
        file = getattr(sys.modules.get(name), "__file__", None)
        if name.partition(".")[0] not in OURS and file:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
            spots.update(dict.fromkeys(spots_in(text, file_of(name), classes[name], operators())))
    return tuple(sorted(spots))


def spots_in(text: str, file: str, classes: Iterable[str], table: Operators) -> Iterator[Spot]:
    """Places in one source text that the `forward` of these classes may reach; none in text that is not Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for function in _reached(tree, set(classes)):
        tests = {id(node) for each in ast.walk(function) if isinstance(each, TESTED) for node in ast.walk(each.test)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                kind = _kind(node, id(node) in tests, table)
                if kind:
                    yield Spot(file, node.lineno, node.end_lineno or node.lineno, kind)


def _reached(tree: ast.Module, classes: set[str]) -> Iterator[ast.FunctionDef]:
    """`forward` of the classes, then whatever of the same file the found ones name."""
    known: dict[str, list[ast.FunctionDef]] = defaultdict(list)
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) and node.name in classes else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef):
                known[member.name].append(member)
    waiting, done = ["forward"], {"forward", "__init__"}
    while waiting:
        for function in known[waiting.pop()]:
            yield function
            names = {node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(function)
                     if isinstance(node, (ast.Name, ast.Attribute))}
            waiting += sorted(names & known.keys() - done)
            done |= names


def _kind(call: ast.Call, tested: bool, table: Operators) -> str:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = ast.unparse(call.func)
    arguments = len(call.args) + len(call.keywords)
    for source in table.sources:
        functions = (*source.functions, *(test for test in source.tests if tested and "." in test))
        if name in functions or f"{name}/{arguments}" in functions:
            return source.kind
        if not name.startswith("torch.") and (method in source.methods or (tested and method in source.tests)):
            return source.kind
    return ""


def merged(sites: Mapping[Site, int], spots: Iterable[Spot]) -> tuple[ControlFlow, ...]:
    """One entry for each place: those that asked, with all that they were told, and those only seen in the source."""
    found: dict[tuple[str, int, str], tuple[dict[str, None], int]] = {}
    for site, times in sites.items():
        key = (site.file, site.line, site.kind)
        answers, before = found.get(key, ({}, 0))
        found[key] = ({**answers, site.assumed: None}, before + times)
    entries = [ControlFlow(file=file, line=line, kind=kind, assumed=_told(list(answers)), times=times, executed=True)
               for (file, line, kind), (answers, times) in found.items()]
    ran = {(site.file, site.line) for site in sites}
    idle = [spot for spot in spots if not any((spot.file, at) in ran for at in range(spot.first, spot.last + 1))]
    entries += [ControlFlow(file=file, line=line, kind=kind, assumed="", times=0, executed=False)
                for file, line, kind in dict.fromkeys((spot.file, spot.first, spot.kind) for spot in idle)]
    return tuple(sorted(entries, key=lambda entry: (entry.file, entry.line, entry.kind)))


def _told(answers: list[str]) -> str:
    more = f"; {len(answers) - MOST} more" if len(answers) > MOST else ""
    return "; ".join(answers[:MOST]) + more
