"""`dayzero check evaluate` and `check scores`: what a model scores, and whether two scores differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dayzero.errors import UsageError

from .check import check
from .options import AsJson, Trust, drawn_progress, finish, names_of, show, write_json
from .outputs import refuse_output

if TYPE_CHECKING:
    from dayzero.progress import Progress
    from dayzero.schema.evaluation import Evaluation

Margin = Annotated[float | None, typer.Option(
    "--margin", help="Acceptable loss: 0.02 is 2 points of a share, 2 % of a number. Default: 5 points, 1 %.")]


@check.command("evaluate")
def evaluate(
    release: Annotated[str, typer.Argument(help="Release folder or hub id, or a server's address: http://host/v1.")],
    tasks: Annotated[list[str] | None, typer.Option(
        "--tasks", help="texts, questions (bundled, offline; the default), needle, or tasks of lm-eval; repeatable.")]
    = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="bf16, f16 or f32; default: the release's.")] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="Layout to run, like tp=2.")] = None,
    trust_remote_code: Trust = False,
    baseline: Annotated[Path | None, typer.Option(
        "--baseline", help="Compare with this evaluation: a file of --out, or a folder of lm-eval.")] = None,
    margin: Margin = None,
    include: Annotated[Path | None, typer.Option("--include", help="Folder of own tasks of lm-eval.")] = None,
    longest: Annotated[int, typer.Option("--longest", min=128, help="Of needle: words of the longest text.")] = 512,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most items of each lm-eval task.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of a server with several: which model.")] = None,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="Of a server: release that encodes.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the scores, item by item, in this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a release on texts and questions: bundled ones, or those of lm-eval; with --baseline, judge the difference.

    Verdicts are pass, fail and inconclusive; only a loss that is certainly beyond the margin fails.
    """
    from dayzero.stages.check.tasks import (
        compare_scores,
        evaluation_table,
        read_evaluation,
        score_table,
        to_contract,
        verdict_of,
    )

    if margin is not None and baseline is None:
        raise UsageError("--margin is of a comparison, and there is nothing to compare with", "add --baseline")
    if out is not None:
        refuse_output("--out", out, (release, *([baseline] if baseline else [])))
    before = read_evaluation(baseline) if baseline else None
    with drawn_progress() as progress:
        asked = Scoring(names_of(tasks) or (), include, limit, longest, progress)
        found = _served(release, model, tokenizer, asked) if release.startswith(("http://", "https://")) else loaded(
            release, {"dtype": dtype, "layout": layout, "trust_remote_code": trust_remote_code}, asked)
    if out is not None:
        write_json(str(out), found)
    if before is None:
        show(lambda: found, lambda: evaluation_table(found), as_json)
        return
    verdicts = compare_scores(before, found, margin)
    show(lambda: to_contract(before, found, verdicts), lambda: score_table(before, found, verdicts), as_json)
    finish(verdict_of(verdicts) == "fail")


@check.command("scores")
def scores(
    baseline: Annotated[str, typer.Argument(help="File of `check evaluate --out`, folder of lm-eval, or like 13/50.")],
    candidate: Annotated[str, typer.Argument(help="Likewise.")],
    margin: Margin = None, as_json: AsJson = False,
) -> None:
    """Whether two scores differ by more than a margin, and what so many items can tell at all."""
    from dayzero.stages.check.tasks import compare_scores, score_table, stated, to_contract, verdict_of

    first, second = stated(baseline), stated(candidate)
    verdicts = compare_scores(first, second, margin)
    show(lambda: to_contract(first, second, verdicts), lambda: score_table(first, second, verdicts), as_json)
    finish(verdict_of(verdicts) == "fail")


class Scoring(NamedTuple):
    """What to score."""

    tasks: tuple[str, ...]
    include: Path | None
    limit: int | None
    longest: int
    progress: Progress

    def of(self, scorer: Any) -> Evaluation:
        """Bundled tasks and those of lm-eval in one evaluation."""
        from dayzero.runtime.evaluation import DEFAULT, TASKS, evaluate_bundled, joined
        from dayzero.runtime.evaluation.harness import evaluate_harness

        own = tuple(task for task in self.tasks or DEFAULT if task in TASKS)
        found = [evaluate_bundled(scorer, own, longest=self.longest, progress=self.progress)] if own else []
        if others := self.others():
            found.append(evaluate_harness(scorer, others, include=self.include, limit=self.limit))
        return joined(found)

    def others(self) -> tuple[str, ...]:
        """Tasks of lm-eval. Raises for one that there is not, before anything is loaded."""
        from dayzero.runtime.evaluation import TASKS
        from dayzero.runtime.evaluation.harness import found_tasks

        return found_tasks([task for task in self.tasks if task not in TASKS], self.include)


def loaded(source: str, options: dict[str, Any], asked: Scoring) -> Evaluation:
    from dayzero.library import load
    from dayzero.runtime.tokens import Tokens
    from dayzero.runtime.versions import digests
    from dayzero.runtime.weights import check_weights
    from dayzero.stages.read import read as read_release

    asked.others()
    release = read_release(source, progress=asked.progress)
    root = check_weights(release)
    from dayzero.runtime.evaluation.model import ModelScorer

    with Tokens(root) as tokens, load(release, progress=asked.progress, **options) as model:
        return asked.of(ModelScorer(model, tokens, release.name, f"dayzero, {model.layout.text}, {model.dtype}",
                                    digests=digests(root), progress=asked.progress))


def _served(url: str, model: str | None, tokenizer: str | None, asked: Scoring) -> Evaluation:
    from contextlib import ExitStack

    from dayzero.runtime.endpoint import Endpoint
    from dayzero.runtime.evaluation.served import ServedScorer
    from dayzero.runtime.tokens import Tokens

    asked.others()
    with ExitStack() as stack:
        tokens = stack.enter_context(Tokens(tokenizer)) if tokenizer else None
        endpoint = Endpoint(url, model=model, text=tokens.decode if tokens else None, progress=asked.progress)
        return asked.of(ServedScorer(endpoint, tokens, progress=asked.progress))
