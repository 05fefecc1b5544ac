"""What a Python file imports, and which of it must be there for the file to load: read from its syntax alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_CATCHES = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class Need:
    """One name that a file takes from a module."""

    module: str
    """Dotted name as written, without leading dots."""
    level: int
    """Leading dots: 0 is absolute."""
    name: str | None
    """Name that is taken from it; None: the module itself; `*`: all."""
    line: int
    """Where."""
    guarded: bool = False
    """The file copes with its absence: tried and caught, or behind a condition."""
    lazy: bool = False
    """Inside a function: only needed when it is called."""
    used: bool = False
    """Not an import but an attribute of an imported module."""
    instead_of: tuple[Need, ...] = ()
    """Only needed where one of these is absent."""

    @property
    def dotted(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}" if self.name and self.name != "*" else self.module


@dataclass(frozen=True)
class _Context:
    guarded: bool = False
    lazy: bool = False
    instead_of: tuple[Need, ...] = ()


def imported(tree: ast.Module) -> dict[str, str]:
    """Local name -> the dotted name that an absolute import makes it stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]:
                      alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def needs(tree: ast.Module) -> Iterator[Need]:
    """All imports of a file, in order, and the uses `module.attribute` of modules that it imported."""
    modules = imported(tree)
    put_there = {name for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                 for name in _attribute(node, modules)}
    yield from (need for need in _block(tree.body, _Context(), modules) if (need.module, need.name) not in put_there)


def _block(body: Iterable[ast.stmt], context: _Context, modules: dict[str, str]) -> Iterator[Need]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node, context)
        elif isinstance(node, ast.Try | ast.TryStar):
            yield from _try(node, context, modules)
        elif isinstance(node, ast.If):
            yield from _if(node, context, modules)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _block(node.body, replace(context, lazy=True), modules)
        elif isinstance(node, ast.With | ast.AsyncWith):
            suppressed = any(_suppresses(item.context_expr) for item in node.items)
            yield from _block(node.body, replace(context, guarded=context.guarded or suppressed), modules)
        elif isinstance(node, ast.ClassDef | ast.For | ast.AsyncFor | ast.While):
            yield from _block([*node.body, *getattr(node, "orelse", [])], context, modules)
        else:
            yield from _uses(node, context, modules)


def _import(node: ast.Import | ast.ImportFrom, context: _Context) -> Iterator[Need]:
    level = node.level if isinstance(node, ast.ImportFrom) else 0
    for alias in node.names:
        module, name = (alias.name, None) if isinstance(node, ast.Import) else (node.module or "", alias.name)
        yield Need(module=module, level=level, name=name, line=node.lineno, guarded=context.guarded, lazy=context.lazy,
                   instead_of=context.instead_of)


def _try(node: ast.Try | ast.TryStar, context: _Context, modules: dict[str, str]) -> Iterator[Need]:
    """What is tried is guarded if a handler catches its absence and does not pass the error on."""
    caught = [handler for handler in node.handlers if _catches(handler)]
    raises = any(isinstance(inner, ast.Raise) for handler in caught for inner in handler.body)
    inside = replace(context, guarded=context.guarded or (bool(caught) and not raises))
    tried = tuple(_block(node.body, inside, modules))
    yield from tried
    imported = tuple(need for need in tried if not need.used)
    for handler in node.handlers:
        yield from _block(handler.body, replace(context, instead_of=imported, guarded=context.guarded or not imported),
                          modules)
    yield from _block(node.orelse, inside, modules)
    yield from _block(node.finalbody, context, modules)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _CATCHES) for kind in kinds)


def _if(node: ast.If, context: _Context, modules: dict[str, str]) -> Iterator[Need]:
    """Either branch is guarded by its condition, except where the condition is about type checking: that is False."""
    guarded = replace(context, guarded=True)
    positive = not (isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not))
    test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    checking = _last(test) == "TYPE_CHECKING"
    yield from _block(node.body, context if checking and not positive else guarded, modules)
    yield from _block(node.orelse, context if checking and positive else guarded, modules)


def _last(node: ast.expr) -> str:
    """The name, or the last part of a dotted one; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _suppresses(node: ast.expr) -> bool:
    """Whether it is `suppress(...)` of an error that an absent module raises."""
    return isinstance(node, ast.Call) and _last(node.func) == "suppress" and any(
        _last(kind) in _CATCHES for kind in node.args)


def _uses(node: ast.stmt, context: _Context, modules: dict[str, str]) -> Iterator[Need]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            for module, name in _attribute(inner, modules):
                yield Need(module=module, level=0, name=name, line=inner.lineno, guarded=context.guarded,
                           lazy=context.lazy, used=True)


def _attribute(node: ast.Attribute, modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(dotted module, attribute), where a chain of attributes starts at an imported module."""
    parts, value = [], node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if isinstance(value, ast.Name) and value.id in modules:
        yield ".".join([modules[value.id], *reversed(parts)]), node.attr


def bindings(tree: ast.Module) -> tuple[frozenset[str], bool]:
    """Names that a module defines at its top, in any branch, and whether these are all: a star import, a module-level
    `__getattr__` or an assignment through `globals()` or `sys.modules` can add others."""
    names: set[str] = set()
    complete = True
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            complete &= node.name != "__getattr__"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            complete &= all(alias.name != "*" for alias in node.names)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
            complete &= node.id != "globals"
        elif isinstance(node, ast.Attribute) and node.attr == "modules":
            complete = False
        else:
            waiting += ast.iter_child_nodes(node)
            continue
    return frozenset(names), complete


def stars(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(leading dots, module) of each star import of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield node.level, node.module or ""
