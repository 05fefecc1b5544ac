"""Evaluation: what a model scored on the items of tasks, and what two evaluations say about each other."""

from __future__ import annotations

from typing import Literal

from .base import Noun

Scale = Literal["share", "number"]
Outcome = Literal["pass", "fail", "inconclusive"]


class TaskScores(Noun, frozen=True, kw_only=True):
    """One metric of one task, item by item: two runs of the same items can then be paired."""

    task: str
    """Name of the task."""
    metric: str
    """What each item scored, such as `correct` or `bits per byte`."""
    scale: Scale
    """share: every item is 0 or 1; number: any number."""
    better: Literal["higher", "lower"]
    """Which direction is good."""
    items: dict[str, float] = {}
    """Name of the item, made from its text, -> score. Empty: only counts are known."""
    right: int | None = None
    """Items that scored 1, where only counts are known."""
    count: int = 0
    """All items."""
    weights: dict[str, float] = {}
    """Weight of each item in the mean, such as its bytes; empty: all weigh the same."""
    margin: float | None = None
    """Acceptable loss that the task's author states: a share of 1, or of the baseline's mean of numbers."""


class Evaluation(Noun, frozen=True, kw_only=True):
    """All scores of one model run in one way."""

    name: str
    """Release, or model as the server names it."""
    engine: str
    """What ran it, and how."""
    digests: dict[str, str] = {}
    """What identifies it: weights, config, tokenizer -> SHA-256; empty where a server does not tell."""
    libraries: dict[str, str] = {}
    """Package -> version."""
    scores: tuple[TaskScores, ...] = ()
    """One for each task and metric."""
    not_made: dict[str, str] = {}
    """Task -> why it has no score."""


class ScoreVerdict(Noun, frozen=True, kw_only=True):
    """One metric of two evaluations. Differences are those of the candidate in the good direction: below 0 is worse."""

    task: str
    """Name of the task."""
    metric: str
    """As in `TaskScores`."""
    baseline: float
    """Mean of the baseline."""
    candidate: float
    """Mean of the candidate, over the same items."""
    items: int
    """Items that both have."""
    paired: bool
    """Whether items were paired; otherwise only counts were compared."""
    difference: float
    """Candidate against baseline; below 0: the candidate is worse."""
    low: float
    """Lower end of the 95 % interval of the difference."""
    high: float
    """Upper end."""
    margin: float
    """Loss that is acceptable, above 0."""
    detectable: float
    """Smallest loss that so many items show in 4 of 5 comparisons (power 80 %, two-sided 5 %)."""
    outcome: Outcome
    """pass: the loss is within the margin; fail: it is beyond; inconclusive: the items cannot tell."""
    method: str
    """How the interval was made."""
    detail: str = ""
    """More about it, for people."""
