"""`dayzero check`: the stage, and under names of their own what looks at golden dumps.

A file `check_NAME.py` beside this one adds `dayzero check NAME`:

    from .check import check

    @check.command("name")
    def name(...) -> None:
        ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from .app import app
from .options import AsJson, Force, Reference, Release, Runs, Target, advanced, finish, made, options_of, show

STAGE = "stage"
"""Name of the stage's own command; nobody has to write it."""


class _Group(TyperGroup):
    """Whatever does not begin with the name of a command is the stage's."""

    def parse_args(self, context: Any, arguments: list[str]) -> Any:
        if arguments and arguments[0] not in (*self.commands, *self.get_help_option_names(context)):
            arguments = [STAGE, *arguments]
        return super().parse_args(context, arguments)


check = typer.Typer(cls=_Group, no_args_is_help=False, rich_markup_mode=None, add_completion=False)
app.add_typer(check, name="check", help=(
    "Prove that what ran is the released model: `dayzero check RELEASE --target TARGET` layer by layer; the commands "
    "below record, compare and judge golden dumps (docs/check.md). A release in a folder named like one of them: "
    "`dayzero check ./compare`."))


@check.command(STAGE)
def stage(release: Release, target: Target, reference: Reference = None, runs: Runs = Path("runs"),
          force: Force = False, as_json: AsJson = False) -> None:
    """What `dayzero check RELEASE` is: prove that what ran is the released model, layer by layer."""
    from dayzero.schema import Verdict
    from dayzero.stages.check import overview, to_contract

    job = advanced(release, target, runs, options_of(reference=reference), upto="check", force=force)
    verdict = made(job, "check", Verdict)
    show(lambda: to_contract(verdict), lambda: overview(verdict), as_json)
    finish(not verdict.passed)
