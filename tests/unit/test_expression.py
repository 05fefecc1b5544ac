"""The arithmetic of sizes: integers, names, + - * //, min, max and parentheses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.expression import ExpressionError, UnknownNameError, evaluate

NAMES = {"batch": 3, "tokens": 70, "context": 4096}
NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(sorted(NAMES))
TREES = st.recursive(NUMBERS, lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner).map(
    lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})" if parts[0].isalpha() else f"({parts[1]} {parts[0]} {parts[2]})"
), max_leaves=6)


@given(TREES)
def test_agrees_with_python(text: str) -> None:
    assert evaluate(text, NAMES) == eval(text, {"min": min, "max": max}, NAMES)


def test_rounding_up_and_bounds_by_hand() -> None:
    assert evaluate("-(-tokens // 64) * 64", NAMES) == 128
    assert evaluate("min(context, 127) + 1", NAMES) == 128
    assert evaluate("max(1, tokens // 128)", NAMES) == 1
    assert evaluate("min(batch, tokens, context)", NAMES) == 3


@pytest.mark.parametrize("text", ["min(tokens)", "min()", "abs(tokens, 1)", "min(tokens, key=1)", "min.x(1, 2)",
                                  "tokens ** 2", "tokens / 2", "min(*[1, 2])", "(lambda: 1)(1, 2)"])  # fmt: skip
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, NAMES)


def test_a_name_without_a_value_is_told() -> None:
    with pytest.raises(UnknownNameError, match="needs token,") as error:
        evaluate("2 * token", NAMES)
    assert 'did you mean "tokens"?' in error.value.hint
