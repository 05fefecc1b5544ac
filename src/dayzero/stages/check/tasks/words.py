"""Score verdicts for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema.evaluation import Evaluation, Outcome, ScoreVerdict

from .verdict import own_interval


def verdict_of(found: Sequence[ScoreVerdict]) -> Outcome:
    """fail when one is; pass when all that could tell are, and one could."""
    outcomes = {each.outcome for each in found}
    if "fail" in outcomes:
        return "fail"
    return "pass" if "pass" in outcomes and outcomes <= {"pass"} else "inconclusive"


def to_contract(baseline: Evaluation, candidate: Evaluation, found: Sequence[ScoreVerdict]) -> dict[str, Any]:
    """{verdict, baseline, candidate, scores, not_made}."""
    return {"verdict": verdict_of(found), "baseline": baseline.name, "candidate": candidate.name, "scores": found,
            "not_made": baseline.not_made | candidate.not_made}


def evaluation_table(found: Evaluation) -> RenderableType:
    """What one model scored, with the interval that so many items leave."""
    table = Table("task", "metric", "items", "mean", "95 %", title=f"{found.name} ({found.engine})")
    for each in found.scores:
        mean, low, high = own_interval(each)
        table.add_row(each.task, each.metric, str(each.count), f"{mean:.4g}", f"{low:.4g} to {high:.4g}")
    return Group(table, *[Text(f"not made: {task} ({why})") for task, why in found.not_made.items()])


def score_table(baseline: Evaluation, candidate: Evaluation, found: Sequence[ScoreVerdict]) -> RenderableType:
    """One row for each metric, and what is to be said of it."""
    table = Table("task", "metric", "items", "baseline", "candidate", "better by (95 %)", "margin", "shows from",
                  "verdict", title=f"{candidate.name} ({candidate.engine}) against {baseline.name} ({baseline.engine})")
    for each in found:
        table.add_row(each.task, each.metric, f"{each.items}{'' if each.paired else ', counts only'}",
                      f"{each.baseline:.4g}", f"{each.candidate:.4g}",
                      f"{each.difference:+.3g} ({each.low:+.3g} to {each.high:+.3g})", f"{each.margin:.3g}",
                      f"{each.detectable:.3g}", each.outcome.upper() if each.outcome == "fail" else each.outcome)
    lines = [Text(f"{each.task}, {each.metric}: {each.detail}") for each in found]
    left = [Text(f"not made: {task} ({why})") for task, why in (baseline.not_made | candidate.not_made).items()]
    return Group(table, *lines, *left)
