"""Lengths as expressions: exact polynomials, bounds and roundings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.expression import evaluate
from dayzero.stages.trace.grouping.lengths import BOTH, PREFILL, Sample, Seen, added, find, multiplied, solve, text

Rule = Callable[[int, int, int], int]
GRID = [(2, 5, 0), (2, 7, 0), (3, 5, 0), (3, 7, 0)]
STEPS = [(2, 1, 11), (2, 1, 13), (3, 1, 11), (3, 1, 13)]
ASKED, ASKED_STEP = (1, 4096, 0), (4, 1, 4096)
CONSTANTS = (64, 128, 2048)


def samples(rule: Rule, workloads: list[tuple[int, int, int]]) -> tuple[Sample, ...]:
    return tuple(Sample(*workload, rule(*workload)) for workload in workloads)


def prefill(rule: Rule) -> Seen:
    return Seen(samples(rule, GRID), samples(rule, STEPS), samples(rule, [ASKED, ASKED_STEP]))


def decode(rule: Rule) -> Seen:
    return Seen(samples(rule, STEPS), samples(rule, GRID), samples(rule, [ASKED_STEP, ASKED]))


def expression(seen: Seen, hints: tuple[str, ...] = ()) -> str | None:
    found = find(seen, hints, CONSTANTS)
    return None if found is None else found.text or text(found.polynomial)


@given(st.tuples(*[st.integers(-9, 9)] * 6))
def test_a_polynomial_is_found_again(coefficients: tuple[int, ...]) -> None:
    wanted = {powers: value for powers, value in zip(BOTH, coefficients, strict=True) if value}
    rule: Rule = lambda *at: sum(c * Sample(*at, 0).at(powers) for powers, c in wanted.items())  # noqa: E731
    assert solve(BOTH, (*samples(rule, GRID), *samples(rule, STEPS))) == wanted
    assert evaluate(text(wanted), {"batch": 5, "tokens": 3, "context": 17}) == rule(5, 3, 17)


def test_too_few_or_wrong_samples_give_none() -> None:
    assert solve(PREFILL, samples(lambda b, t, c: b * t, GRID[:3])) is None
    assert solve(PREFILL, (*samples(lambda b, t, c: t * t, GRID), *samples(lambda b, t, c: t * t, [(2, 9, 0)]))) is None
    assert solve(PREFILL, samples(lambda b, t, c: t // 2, [(2, 4, 0), (2, 6, 0), (3, 4, 0), (3, 6, 0)])) is None


def test_products_and_sums() -> None:
    rows, keys = {(1, 1, 0): 1}, {(0, 1, 0): 1, (0, 0, 1): 1}
    assert text(multiplied(rows, keys)) == "batch * tokens * context + batch * tokens * tokens"
    assert added(keys, {(0, 0, 1): -1}) == {(0, 1, 0): 1}
    assert text({}) == "0"


@pytest.mark.parametrize("rule, wanted", [
    (lambda b, t, c: b * t, "batch * tokens"),
    (lambda b, t, c: 7168, "7168"),
    (lambda b, t, c: t + c, "context + tokens"),
    (lambda b, t, c: b * (t + c), "batch * context + batch * tokens"),
    (lambda b, t, c: c, "context"),
])  # fmt: skip
def test_both_phases_have_one_expression(rule: Rule, wanted: str) -> None:
    assert expression(prefill(rule)) == expression(decode(rule)) == wanted


def test_a_length_of_one_phase_alone() -> None:
    seen = Seen(samples(lambda b, t, c: b, STEPS), (), samples(lambda b, t, c: b, [ASKED_STEP]))
    assert expression(seen) == "batch"


def test_a_window_bounds_the_cache() -> None:
    rule: Rule = lambda b, t, c: t if c == 0 else min(c, 127) + t  # noqa: E731
    assert expression(decode(rule)) == "min(context, 127) + tokens"
    assert expression(prefill(rule), hints=("min(context, 127) + tokens",)) == "min(context, 127) + tokens"
    assert expression(prefill(rule)) == "context + tokens"


def test_a_choice_is_bounded() -> None:
    assert expression(prefill(lambda b, t, c: min(t + c, 2048))) == "min(context + tokens, 2048)"
    assert expression(prefill(lambda b, t, c: min(t + c, 2000))) is None  # no number of the config


def test_sizes_are_rounded_to_chunks() -> None:
    def rule(b: int, t: int, c: int) -> int:
        return -(-t // 64)

    one = Seen(samples(rule, GRID), (), samples(rule, [(1, 4096, 0)]))
    found = expression(one)
    assert found is not None
    assert [evaluate(found, {"batch": 1, "tokens": tokens, "context": 0}) for tokens in (1, 64, 65)] == [1, 1, 2]


def test_entries_and_a_window() -> None:
    grid = [(batch, tokens, 0) for batch in (2, 3) for tokens in (640, 896)]
    rule: Rule = lambda b, t, c: t + (t + c) // 128  # noqa: E731
    found = expression(Seen(samples(rule, grid), (), samples(rule, [(1, 4096 + 5, 0)])))
    assert found is not None
    assert evaluate(found, {"batch": 1, "tokens": 300, "context": 0}) == 302


def test_what_cannot_be_explained_is_none() -> None:
    assert expression(prefill(lambda b, t, c: t * t)) is None


def test_a_bound_that_only_a_far_run_shows() -> None:
    """Keys of a cache that keeps 128 tokens, or 127 of them: small runs and the one that was asked for see all."""
    def seen(kept: int) -> Seen:
        def at(*sizes: tuple[int, int, int]) -> tuple[Sample, ...]:
            return tuple(Sample(*one, min(one[2], kept) + one[1]) for one in sizes)

        return Seen(at(*STEPS), at(*GRID), at((1, 1, 64), (1, 64, 0)), at((2, 1, 145)), at((2, 139, 0)))

    for kept in (127, 128):
        found = find(seen(kept), (), CONSTANTS)
        assert found and found.text == f"min(context, {kept}) + tokens"
    near = find(seen(127)._replace(far=(), other_far=()), (), CONSTANTS)
    assert near and text(near.polynomial) == "context + tokens"
    hints = ("min(context, 127) + tokens", "min(context, 128) + tokens")
    for kept, told in ((127, hints[0]), (128, hints[1]), (10**6, "")):
        found = find(seen(kept), hints, CONSTANTS)
        assert found and found.text == told
