"""The arithmetic of cards: exactly integers, names, + - * // and parentheses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import CardError
from dayzero.stages.read.expression import LIMIT, UnknownName, evaluate

NAMES = {"heads": 12, "vision_config.width": 7}
NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(sorted(NAMES))
TREES = st.recursive(NUMBERS, lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//"]), inner).map(
    lambda parts: f"({' '.join(parts)})"), max_leaves=8)


@settings(deadline=None)
@given(TREES)
def test_agrees_with_python(text: str) -> None:
    plain = text.replace("vision_config.width", "7").replace("heads", "12")
    try:
        expected = eval(plain)
    except ZeroDivisionError:
        with pytest.raises(CardError, match="division by zero"):
            evaluate(text, NAMES)
        return
    if abs(expected) <= LIMIT:
        assert evaluate(text, NAMES) == expected


def test_numbers_and_rounding_up() -> None:
    assert evaluate(5, {}) == 5
    assert evaluate("-(-out // 128)", {"out": 576}) == 5


@pytest.mark.parametrize("text", [
    "__import__('os')", "heads.__class__()", "heads ** 2", "heads / 2", "heads if 1 else 2", "[1]", "'a'", "1.5",
    "True", "heads(", "", "lambda: 1", "heads << 3", "+heads", "f'{heads}'", "heads; heads", "1" * 501, "(" * 400,
])  # fmt: skip
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(CardError):
        evaluate(text, {"heads": 2, "heads.__class__": 1})


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_card_error(text: str) -> None:
    try:
        assert isinstance(evaluate(text, NAMES), int)
    except CardError as error:
        assert "\n" not in error.message or "\n" in text


def test_a_missing_name_says_which_and_what_is_near() -> None:
    with pytest.raises(UnknownName, match="needs head,") as error:
        evaluate("2 * head", NAMES)
    assert 'did you mean "heads"?' in error.value.hint


def test_absurd_numbers() -> None:
    with pytest.raises(CardError, match="absurdly large"):
        evaluate("a * a * a", {"a": 1 << 30})
