"""Conditions in target files."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import TargetError
from dayzero.stages.preflight.engine.expressions import NoValue, condition

VALUES = {"tokens": 70000, "experts": 384, "top_k": 8, "heads": 64, "tp": 8, "head_dim": 192}
NAMES = (*VALUES, "kv_rank")


@pytest.mark.parametrize("text", [
    "tokens > 54272",  # ROCm/aiter#2359
    "not experts power_of_two", "experts is not power_of_two", "top_k power_of_two", "experts multiple_of 128",
    "tokens >= 70_000 and (experts < 10 or top_k == 8)", "heads / tp in (8, 12)", "(heads + tp) * 2 == 144",
    "4 <= heads / tp <= 16", "always", "TRUE", "tp = 8", "not (tokens < 5)", "heads % tp == 0", "-heads < 0",
    "heads // 10 == 6",
    "head_dim not in [64, 128, 256]", "heads/tp != 12 && tp == 8", "tokens < 1 || experts > 1", "1 + 2 * 3 == 7",
    "not tokens < 5 and tp > 1", "tp > 1 or tp > 100 and tp > 200",
])
def test_what_holds(text: str) -> None:
    assert condition(text, NAMES).test(VALUES)
    assert not condition(f"not ({text})", NAMES).test(VALUES)


@pytest.mark.parametrize(("text", "part"), [
    ("", "too early"), ("tokens", "too early"), ("tokens >", "too early"),
    ("expert power_of_two", "expert is not known"),
    ("__import__('os')", "cannot read"), ("tokens > 5 5", "'5'"), ("(" * 50 + "tp>1" + ")" * 50, "inside each other"),
    ("tokens ** 2 > 5", "'*'"), ("tokens > 1 and", "too early"), ("tokens.real > 1", "not known"), ("tp > 1e6", "'e6'"),
    ("a" * 600, "too long"), ("in in in", "'in'"), ("tp in ()", "')'"), ("tp = = 8", "'=='"), ("tp > 1)", "')'"),
    ("tp not > 5", "'>'"), ("not not", "too early"), ("tp > 1; tp > 2", "cannot read"),
])
def test_what_is_not_a_condition(text: str, part: str) -> None:
    with pytest.raises(TargetError) as caught:
        condition(text, NAMES)
    assert part in caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint and caught.value.hint


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(TargetError) as caught:
        condition("expertz power_of_two", NAMES)
    assert '"experts"' in caught.value.hint


def test_names_numbers_and_values_that_are_not_there() -> None:
    read = condition("tokens > 54272 and kv_rank multiple_of 512", NAMES)
    assert (read.names, read.numbers) == ({"tokens", "kv_rank"}, {54272, 512})
    with pytest.raises(NoValue):
        read.test(VALUES)
    with pytest.raises(TargetError, match="division by zero"):
        condition("heads multiple_of 0", NAMES).test(VALUES)


@given(st.integers(1, 2**40))
def test_powers_of_two(number: int) -> None:
    read = condition("heads power_of_two", NAMES)
    assert read.test({"heads": 1 << number.bit_length()})
    assert read.test({"heads": number}) == (bin(number).count("1") == 1)


@given(st.text(alphabet="tpheads ()<>=!&|+-*/%,[]0123456789_andorti", max_size=60))
def test_no_text_ends_otherwise(text: str) -> None:
    with contextlib.suppress(TargetError, NoValue):
        condition(text, NAMES).test(VALUES)
