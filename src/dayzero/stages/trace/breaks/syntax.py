"""What stands in the source that `forward` reaches: side effects, and whether a line decides where the code goes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from dayzero.data.breaks import breaks

_ENTRIES = ("forward",)
_NEVER = ("__init__", "_init_weights", "reset_parameters", "from_pretrained", "extra_repr")


class Effect(NamedTuple):
    """One place in a file."""

    line: int
    kind: str
    what: str
    compile: str
    export: str


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def branches_at(text: str, line: int) -> bool:
    """Whether a test or the iterable of a loop lies on that line."""
    for node in ast.walk(_parsed(text)):
        deciding = node.test if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else (
            node.iter if isinstance(node, ast.For) else None)
        if deciding is not None and deciding.lineno <= line <= (deciding.end_lineno or deciding.lineno):
            return True
    return False


def side_effects(text: str, classes: Iterable[str]) -> Iterator[Effect]:
    """Effects in `forward` of these classes and of the classes that they extend in the same file, and in what they
    name there."""
    found = (effect for function in _reached(_parsed(text), set(classes)) for effect in _in_function(function))
    yield from sorted(set(found))


def _reached(tree: ast.Module, classes: set[str]) -> list[ast.FunctionDef]:
    defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted, waiting = set(), [name for name in defined if name in classes]
    while waiting:
        name = waiting.pop()
        if name in defined and name not in wanted:
            wanted.add(name)
            waiting += [base.id for base in defined[name].bases if isinstance(base, ast.Name)]
    functions: dict[str, list[ast.FunctionDef]] = defaultdict(list)
    for node in tree.body:
        for member in node.body if isinstance(node, ast.ClassDef) and node.name in wanted else [node]:
            if isinstance(member, ast.FunctionDef):
                functions[member.name].append(member)
    found: dict[ast.FunctionDef, None] = {}
    names = list(_ENTRIES) if wanted else []
    done = set(_NEVER)
    while names:
        name = names.pop()
        if name in done:
            continue
        done.add(name)
        for function in functions.get(name, ()):
            found[function] = None
            names += [node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(function)
                      if isinstance(node, (ast.Name, ast.Attribute))]
    return sorted(found, key=lambda function: function.lineno)


def _in_function(function: ast.FunctionDef) -> Iterator[Effect]:
    sized = _sized(function)
    for node in ast.walk(function):
        if isinstance(node, (ast.Call, ast.Attribute)):
            yield from _called(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_own_attribute(target) for target in targets):
                yield Effect(node.lineno, "state", "an attribute of the module is set",
                             "guarded: may compile again", "fails where it holds a tensor")
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield Effect(node.lineno, "state", f"{', '.join(node.names)} outside of the call may be set",
                         "guarded: may compile again", "once, while tracing")
        elif isinstance(node, ast.For) and _counts(node.iter, sized):
            yield Effect(node.lineno, "loop", "as many rounds as a length says: the graph differs for each",
                         "unrolled, again for each length", "unrolled for one length")


def _called(node: ast.Call | ast.Attribute) -> Iterator[Effect]:
    called = isinstance(node, ast.Call)
    name = _dotted(node.func if isinstance(node, ast.Call) else node)
    for group in breaks().calls:
        for known in group.names:
            below = called and (name.endswith(known) if known.startswith(".") else name.startswith(f"{known}."))
            if below or (name == known and (called or "." in known)):
                yield Effect(node.lineno, group.kind, f"{group.what}: {known.lstrip('.')}", group.compile, group.export)
                return


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _own_attribute(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _sized(function: ast.FunctionDef) -> set[str]:
    """Names that are given a length in the function."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and (_is_length(node.value) or (names and _mentions(node.value, names)
                                                                        and _is_arithmetic(node.value))):
            for target in node.targets:
                names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def _is_length(node: ast.expr) -> bool:
    """`x.shape`, `x.shape[1]`, `x.size(1)`, or some of them."""
    if isinstance(node, ast.Tuple):
        return any(map(_is_length, node.elts))
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "size"
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_arithmetic(node: ast.expr) -> bool:
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name))


def _mentions(node: ast.expr, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _counts(iterable: ast.expr, sized: set[str]) -> bool:
    """`range(...)` over a length."""
    return (isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range"
            and any(_mentions(argument, sized) or any(_is_length(each) for each in ast.walk(argument)
                                                      if isinstance(each, ast.expr)) for argument in iterable.args))
