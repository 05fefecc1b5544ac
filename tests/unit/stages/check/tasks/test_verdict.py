"""pass, fail and inconclusive."""

import pytest

from dayzero.errors import UsageError
from dayzero.schema.evaluation import Evaluation, TaskScores
from dayzero.stages.check.tasks import compare_scores
from dayzero.stages.check.tasks.verdict import verdict


def shares(values: list[float], **more: object) -> TaskScores:
    return TaskScores(task="t", metric="correct", scale="share", better="higher", count=len(values),
                      items={str(number): value for number, value in enumerate(values)}, **more)


def only_counts(right: int, count: int) -> TaskScores:
    return TaskScores(task="t", metric="correct", scale="share", better="higher", right=right, count=count)


def numbers(values: list[float], better: str = "lower") -> TaskScores:
    return TaskScores(task="t", metric="bits", scale="number", better=better, count=len(values),
                      items={str(number): value for number, value in enumerate(values)})


def test_thirteen_and_twelve_of_fifty_are_the_same_as_far_as_fifty_items_tell() -> None:
    """FlagGems issue 4839 reports 13 against 12 of 50 as a degradation of 7.69 %."""
    found = verdict(only_counts(13, 50), only_counts(12, 50))
    assert found.outcome == "inconclusive" and not found.paired
    assert found.low < -0.05 and found.detectable > 0.2
    assert "items would" in found.detail


def test_a_fall_from_92_to_25_percent_is_one() -> None:
    """vLLM issue 45037: a scaling factor applied twice."""
    assert verdict(only_counts(184, 200), only_counts(50, 200)).outcome == "fail"


def test_equal_answers_pass_where_there_are_enough_of_them() -> None:
    assert verdict(shares([1.0, 0.0] * 100), shares([1.0, 0.0] * 100)).outcome == "pass"
    assert verdict(shares([1.0, 0.0] * 10), shares([1.0, 0.0] * 10)).outcome == "inconclusive"


def test_a_certain_loss_within_the_margin_passes_and_one_that_may_be_more_is_told() -> None:
    baseline = shares([1.0] * 1000)
    assert verdict(baseline, shares([0.0] * 30 + [1.0] * 970)).outcome == "pass"
    found = verdict(baseline, shares([0.0] * 50 + [1.0] * 950))
    assert found.outcome == "inconclusive" and "a loss is certain" in found.detail
    assert verdict(baseline, shares([0.0] * 50 + [1.0] * 950), 0.01).outcome == "fail"


def test_numbers_of_which_less_is_better() -> None:
    values = [1.0 + number / 50 for number in range(40)]
    assert verdict(numbers(values), numbers([value + 0.001 for value in values])).outcome == "pass"
    worse = verdict(numbers(values), numbers([value * 1.1 for value in values]))
    assert worse.outcome == "fail" and worse.difference < 0 and worse.candidate > worse.baseline
    assert verdict(numbers(values, "higher"), numbers([value * 1.1 for value in values], "higher")).outcome == "pass"
    assert verdict(numbers(values[:5]), numbers(values[:5])).outcome == "inconclusive"


def test_no_number_where_there_was_one_is_a_loss() -> None:
    values = [1.0 + number / 50 for number in range(40)]
    assert verdict(numbers(values), numbers([float("nan"), *values[1:]])).outcome == "fail"


def test_items_of_one_only_are_left_out_and_told() -> None:
    found = verdict(shares([1.0] * 300), shares([1.0] * 200))
    assert found.items == 200 and "100 items" in found.detail


def test_the_order_of_items_does_not_matter() -> None:
    baseline = shares([1.0, 0.0, 1.0, 1.0] * 50)
    turned = TaskScores(task="t", metric="correct", scale="share", better="higher", count=200,
                        items=dict(reversed(baseline.items.items())))
    assert verdict(baseline, turned).difference == 0 and verdict(baseline, turned).outcome == "pass"


def test_requests_that_cannot_be_served() -> None:
    one, other = Evaluation(name="a", engine="e", scores=(shares([1.0]),)), Evaluation(name="b", engine="e")
    with pytest.raises(UsageError, match="no task in common"):
        compare_scores(one, other)
    with pytest.raises(UsageError, match="not a margin"):
        compare_scores(one, one, 1.5)
