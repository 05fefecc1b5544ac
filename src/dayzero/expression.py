"""Sizes as text: integers, names, `+ - * //`, `min()`, `max()` and parentheses; nothing else is evaluated.

Rounding a quotient up is `-(-a // b)`. A text is parsed once, however often it is evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache

from dayzero.errors import DayzeroError, did_you_mean

LIMIT = 1 << 50
"""No size is larger."""
LENGTH = 500
"""Characters of the longest expression."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"min": min, "max": max}
_HINT = "use integers, names, + - * //, min(), max() and parentheses"


class ExpressionError(DayzeroError):
    """A text is not an expression, or has no sensible value."""


class UnknownNameError(ExpressionError):
    """An expression uses a name that has no value."""

    def __init__(self, text: str, name: str, known: Mapping[str, int]) -> None:
        super().__init__(f"{text!r} needs {name}, which is not stated", f"{did_you_mean(name, known)}state it")


def evaluate(expression: int | str, names: Mapping[str, int]) -> int:
    """Value of an expression. Raises ExpressionError when it is not one, UnknownNameError when a name has no value."""
    if isinstance(expression, int):
        return _bounded(expression, str(expression))
    return _value(_parsed(expression), names, expression)


@cache
def _parsed(text: str) -> ast.expr:
    if len(text) > LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters is too long", _HINT)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"not an expression: {text!r}", _HINT) from None


def _value(node: ast.expr, names: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Constant(value=int() as value) if type(value) is int:
            return _bounded(value, text)
        case ast.Name() | ast.Attribute():
            return _named(ast.unparse(node), names, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names, text)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, names, text), _value(node.right, names, text)
            if isinstance(node.op, ast.FloorDiv) and right == 0:
                raise ExpressionError(f"division by zero in {text!r}", "check the values that it uses")
            return _bounded(_OPERATORS[type(node.op)](left, right), text)
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(arg, names, text) for arg in args)
    raise ExpressionError(f"not allowed in an expression: {ast.unparse(node)[:60]!r} in {text!r}", _HINT)


def _named(name: str, names: Mapping[str, int], text: str) -> int:
    if name not in names:
        raise UnknownNameError(text, name, names)
    return names[name]


def _bounded(value: int, text: str) -> int:
    if abs(value) > LIMIT:
        raise ExpressionError(f"{text!r} is absurdly large", "check the values that it uses")
    return value
