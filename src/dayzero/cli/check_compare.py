"""`dayzero check compare`: two golden dumps against each other, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dayzero.errors import UsageError, did_you_mean

from .check import check
from .options import AsJson, drawn_progress, finish, show
from .outputs import refuse_outputs


@check.command("compare")
def compare(
    reference: Annotated[Path, typer.Argument(metavar="A", help="Golden dump of the reference.")],
    candidate: Annotated[Path, typer.Argument(metavar="B", help="Golden dump of what is judged.")],
    noise: Annotated[list[Path] | None, typer.Option(
        "--noise", help="Dump of a correct run in the candidate's precision; repeatable. Those inside of A count too.")
        ] = None,
    names: Annotated[Path | None, typer.Option(
        "--map", help="File with names that mean the same; a report has the derived ones.")] = None,
    judge: Annotated[str, typer.Option(
        "--judge", help="What decides: measured (each place's tolerance), constant (1e-2) or cosine (0.99).")
        ] = "measured",
    out: Annotated[Path | None, typer.Option("--out", help="Write the whole report here, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as a page that works offline.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the digest of every tensor first.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take dumps that are not complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two golden dumps place by place, whatever layout, batch or engine they were recorded in.

    Rows are found by (sequence, position), ranks' parts are put together, names are matched and shown. Each place is
    judged by the noise of correct runs there, and routers' choices as sets; what follows a legitimate flip is not
    blamed.
    """
    from dayzero.schema import to_json
    from dayzero.schema.store import write_atomic
    from dayzero.stages.check import compare as comparing

    if judge not in comparing.JUDGES:
        raise UsageError(f"--judge: there is no {judge!r}",
                         f"{did_you_mean(judge, comparing.JUDGES)}choose {', '.join(comparing.JUDGES)}")
    read = [reference, candidate, *(noise or ()), *([names] if names else [])]
    refuse_outputs({"--out": out, "--html": html}, read)
    with drawn_progress() as progress:
        found = comparing.compare(reference, candidate, noise=noise or (), judge=judge, verify=verify,
                                  names=comparing.read_map(names) if names else (), unfinished=unfinished,
                                  progress=progress)
    if out is not None:
        write_atomic(out, to_json(comparing.to_contract(found)) + b"\n")
    if html is not None:
        from dayzero.stages.report import comparison_page

        write_atomic(html, comparison_page(found).encode())
    show(lambda: comparing.to_contract(found), lambda: comparing.overview(found), as_json)
    finish(not found.passed)
