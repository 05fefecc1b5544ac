"""pass, fail or inconclusive: a margin is lost for certain, kept for certain, or the items cannot tell."""

from __future__ import annotations

from math import isfinite

import numpy as np

from dayzero.errors import UsageError
from dayzero.schema.evaluation import Evaluation, Outcome, ScoreVerdict, TaskScores

from .statistics import Floats, Interval, paired_numbers, paired_shares, two_shares, wilson

MARGINS = {"share": 0.05, "number": 0.01}
"""Acceptable loss when none is given: 5 points of a share; 1 % of the baseline's mean of a number."""
FEWEST = 10
"""Numbers of fewer items say nothing about how much they scatter."""


def compare_scores(baseline: Evaluation, candidate: Evaluation,
                   margin: float | None = None) -> tuple[ScoreVerdict, ...]:
    """One verdict for each task and metric that both have. `margin`: share of 1 for shares, of the baseline's mean for
    numbers. Raises UsageError when they have nothing in common, or for a margin that is none."""
    if margin is not None and not 0 < margin < 1:
        raise UsageError(f"not a margin: {margin:g}", "give the acceptable loss, above 0 and below 1, such as 0.02")
    theirs = {(each.task, each.metric): each for each in candidate.scores}
    pairs = [(each, theirs[each.task, each.metric]) for each in baseline.scores if (each.task, each.metric) in theirs]
    if not pairs:
        raise UsageError(f"{baseline.name} and {candidate.name} have no task in common", "evaluate the same tasks")
    return tuple(verdict(first, second, margin) for first, second in pairs)


def verdict(baseline: TaskScores, candidate: TaskScores, margin: float | None = None) -> ScoreVerdict:
    """Of one metric. Items that only one has are left out, and told. Raises UsageError when no item is in both."""
    shared = [item for item in baseline.items if item in candidate.items]
    if not shared and (baseline.items and candidate.items):
        raise UsageError(f"{baseline.task}: the two were asked other items", "evaluate the same items")
    sign = 1.0 if baseline.better == "higher" else -1.0
    if shared:
        ours = [np.array([each.items[item] for item in shared]) for each in (baseline, candidate)]
        weights = np.array([baseline.weights.get(item, 1.0) for item in shared])
        found = _paired(baseline, sign * ours[0], sign * ours[1], weights)
        means = [float(np.average(each, weights=weights)) for each in ours]
    else:
        counts = [_counts(each) for each in (baseline, candidate)]
        found = two_shares(counts[0], counts[1])
        means = [right / count for right, count in counts]
    accepted = margin or baseline.margin or MARGINS[baseline.scale]
    limit = accepted if baseline.scale == "share" else accepted * abs(means[0])
    count = len(shared) or min(baseline.count, candidate.count)
    outcome = _outcome(found, limit, means[1], enough=baseline.scale == "share" or count >= FEWEST)
    return ScoreVerdict(
        task=baseline.task, metric=baseline.metric, baseline=means[0], candidate=means[1], items=count,
        paired=bool(shared), difference=found.difference, low=found.low, high=found.high, margin=limit,
        detectable=found.detectable, outcome=outcome, method=found.method,
        detail=_detail(found, limit, outcome, count, left_out(baseline, candidate)))


def own_interval(scores: TaskScores) -> tuple[float, float, float]:
    """(mean, lower, upper end of its 95 % interval) of one run's items."""
    if scores.scale == "share":
        right, count = _counts(scores)
        return right / count, *wilson(right, count)
    values = np.array(list(scores.items.values()))
    weights = np.array([scores.weights.get(item, 1.0) for item in scores.items])
    found = paired_numbers(np.zeros(len(values)), values, weights)
    return found.difference, found.low, found.high


def left_out(baseline: TaskScores, candidate: TaskScores) -> int:
    """Items that only one of them has."""
    return len(baseline.items.keys() ^ candidate.items.keys()) if baseline.items and candidate.items else 0


def _paired(scores: TaskScores, first: Floats, second: Floats, weights: Floats) -> Interval:
    if scores.scale == "number":
        return paired_numbers(first, second, weights)
    if scores.better == "lower":  # shares of what went wrong: turned round, so that 1 is good
        first, second = 1.0 + first, 1.0 + second
    return paired_shares(first, second)


def _outcome(found: Interval, margin: float, candidate: float, *, enough: bool) -> Outcome:
    """A candidate that gave no number where the baseline did has lost, however few the items are."""
    if not isfinite(candidate):
        return "fail"
    if not enough or not isfinite(found.low + found.high):
        return "inconclusive"
    if found.low >= -margin:
        return "pass"
    return "fail" if found.high < -margin else "inconclusive"


def _counts(scores: TaskScores) -> tuple[int, int]:
    if scores.items:
        return round(sum(scores.items.values())), len(scores.items)
    if scores.right is None or scores.count < 1:
        raise UsageError(f"{scores.task}: neither items nor counts are known", "keep the samples of the run")
    return scores.right, scores.count


def _detail(found: Interval, margin: float, outcome: Outcome, count: int, apart: int) -> str:
    words = {
        "pass": "the loss is within the margin", "fail": "the loss is beyond the margin",
        "inconclusive": "a loss is certain, whether it is beyond the margin is not" if found.high < 0 else
                        "these items cannot tell the two apart"}[outcome]
    if outcome == "inconclusive" and found.detectable > margin:
        words += f"; about {round(count * (found.detectable / margin) ** 2)} items would"
    return words + (f"; {apart} items that only one has are left out" if apart else "")
