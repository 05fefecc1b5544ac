"""`dayzero check gate`: in CI, against the last good baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .check import check
from .options import AsJson, Layouts, Release, Seed, Trust, drawn_progress, finish, layouts_of, show, write_json
from .outputs import refuse_outputs

if TYPE_CHECKING:
    from dayzero.gate import Options
    from dayzero.progress import Progress
    from dayzero.schema.evaluation import Evaluation


@check.command("gate")
def gate(
    release: Release,
    baseline: Annotated[Path, typer.Option("--baseline", help="Folder of the last good state; made with --update.")],
    update: Annotated[bool, typer.Option("--update", help="Store this run as the baseline if it is right.")] = False,
    twin: Annotated[bool, typer.Option("--twin", help="Run a miniature of it: seconds, no weights needed.")] = False,
    dtype: Annotated[str, typer.Option("--dtype", help="Precision of the run; default: the release's.")] = "",
    layout: Layouts = None,
    scores: Annotated[bool, typer.Option("--scores", help="Score the bundled texts and questions too.")] = False,
    no_relations: Annotated[bool, typer.Option("--no-relations", help="Leave out what needs no reference.")] = False,
    longest: Annotated[int, typer.Option("--longest", min=64, help="Longest prompt of relations, in tokens.")] = 640,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON to this file too.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write all runs of this gate as a page.")] = None,
    trust_remote_code: Trust = False, seed: Seed = 0, as_json: AsJson = False,
) -> None:
    """Whether a release still runs as it did: against the stored reference, in each layout, twice, by relations and by
    scores; what changed since the baseline is named. Exit code 1 for what certainly fails, and when nothing passed.
    """
    from dayzero.errors import UsageError
    from dayzero.gate import BaselineFolder, Options, gate_table, to_contract
    from dayzero.gate import gate as tried
    from dayzero.gate import junit as junit_text
    from dayzero.schema.store import write_atomic
    from dayzero.stages.report import history_page

    if scores and twin:
        raise UsageError("a twin has random weights: its scores say nothing", "leave out --scores or --twin")
    refuse_outputs({"--junit": junit, "--out": out, "--html": html}, (release, baseline))
    options = Options(twin=twin, dtype=dtype, layouts=layouts_of(layout) or (), relations=not no_relations,
                      longest=longest, own=trust_remote_code, seed=seed)
    with drawn_progress() as progress:
        evaluate = (lambda: _scores(release, options, progress)) if scores else None
        result = tried(release, baseline, options, update=update, evaluate=evaluate, progress=progress)
    if junit is not None:
        write_atomic(junit, junit_text(result).encode())
    if out is not None:
        write_json(str(out), to_contract(result))
    if html is not None:
        write_atomic(html, history_page(BaselineFolder(baseline).history()).encode())
    show(lambda: to_contract(result), lambda: gate_table(result), as_json)
    finish(result.outcome == "fail" or all(each.outcome != "pass" for each in result.checks))


def _scores(source: str, options: Options, progress: Progress) -> Evaluation:
    from dayzero.runtime.evaluation import WORDS

    from .check_evaluate import Scoring, loaded

    return loaded(source, {"dtype": options.dtype or None, "trust_remote_code": options.own},
                  Scoring((), None, None, WORDS, progress))
