"""Arithmetic that takes a number, or an array with one number for each of many cases, in one notation.

Numbers stay Python's own, so that whole ones are exact whatever their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

Value = Any
"""A number, or an array of numbers."""
_ROUNDING = 0.01
"""More than what floats are off by, of up to 10^13."""


def _many(*values: Value) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def largest(*values: Value) -> Value:
    """The largest, case by case."""
    return reduce(np.maximum, values) if _many(*values) else max(values)


def smallest(*values: Value) -> Value:
    """The smallest, case by case."""
    return reduce(np.minimum, values) if _many(*values) else min(values)


def choose(condition: Value, then: Value, otherwise: Value) -> Value:
    """`then` where the condition holds."""
    return np.where(condition, then, otherwise) if _many(condition) else then if condition else otherwise


def real(value: Value) -> Value:
    """An array as floats: products of its whole numbers may be more than they hold."""
    return value.astype(np.float64) if _many(value) else value


def ceiling(value: Value) -> Value:
    """Rounded up to a whole number."""
    return np.ceil(value) if _many(value) else math.ceil(value)


def floor(value: Value) -> Value:
    """Rounded down to a whole number."""
    return np.floor(value) if _many(value) else math.floor(value)


def share(whole: int, part: Value, of: Value) -> Value:
    """`whole * part / of`, rounded up: exact for numbers, within 1 for arrays, which cannot hold the product. What is
    whole stays so."""
    if _many(part, of):
        return np.ceil(whole * (part / of) - _ROUNDING)
    return -(-whole * part // of)


def logarithm(value: Value) -> Value:
    """To base 2."""
    return np.log2(value) if _many(value) else math.log2(value)


def each(value: Value, function: Callable[[int], Any]) -> Value:
    """`function` of a whole number; of an array one result for each, computed once for equal ones."""
    if not _many(value):
        return function(value)
    distinct, which = np.unique(value, return_inverse=True)
    return np.array([function(int(one)) for one in distinct])[which]
