"""Sizes in cards and blocks: integers, names of facts, `+ - * //` and parentheses; nothing else is evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from dayzero.errors import CardError, did_you_mean

LIMIT = 1 << 50
"""No size is larger."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}
_HINT = "use integers, names of the config's facts and keys, + - * // and parentheses"


class UnknownName(CardError):  # noqa: N818
    """An expression uses a fact that is not stated."""


def evaluate(expression: int | str, names: Mapping[str, int]) -> int:
    """Value of an expression. Raises CardError when it is not one, UnknownName when a fact is missing."""
    if isinstance(expression, int):
        return _bounded(expression, str(expression))
    if len(expression) > 500:
        raise CardError(f"an expression of {len(expression)} characters is too long", _HINT)
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CardError(f"not an expression: {expression!r}", _HINT) from None
    return _value(tree.body, names, expression)


def _value(node: ast.expr, names: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value, text)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _named(ast.unparse(node), names, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names, text)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names, text), _value(node.right, names, text)
        if isinstance(node.op, ast.FloorDiv) and right == 0:
            raise CardError(f"division by zero in {text!r}", "check the facts that it uses")
        return _bounded(_OPERATORS[type(node.op)](left, right), text)
    raise CardError(f"not allowed in an expression: {ast.unparse(node)[:60]!r} in {text!r}", _HINT)


def _named(name: str, names: Mapping[str, int], text: str) -> int:
    if name not in names:
        raise UnknownName(f"{text!r} needs {name}, which is not stated",
                          f"{did_you_mean(name, names)}state it in [config]")
    return names[name]


def _bounded(value: int, text: str) -> int:
    if abs(value) > LIMIT:
        raise CardError(f"{text!r} is absurdly large", "check the facts that it uses")
    return value
