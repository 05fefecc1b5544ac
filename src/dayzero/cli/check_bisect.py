"""`dayzero check bisect`: which setting of a run makes it compute something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dayzero.errors import UsageError

from .check import check
from .options import AsJson, drawn_progress, finish, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dayzero.stages.check.locate.bisect import Bisected


@check.command("bisect")
def bisect(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    vary: Annotated[list[str] | None, typer.Option(
        "--vary", help="NAME=VALUE: dtype, attention, norm, linear, experts, compile, batch, chunk, decode, cache or "
        "layout.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Precision of what is not varied.")] = "f32",
    tokens: Annotated[Path | None, typer.Option(
        "--tokens", help="Token ids: JSON like [[1, 2], [3]], or a golden dump whose tokens are taken.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a release with settings varied, alone and together: which of them make it wrong, and where inside.

    Every run is held against the reference place by place (docs/check.md), so what is blamed is named with its module.
    """
    from dayzero.stages.check.locate.bisect import bisect
    from dayzero.stages.check.recording import read_tokens
    from dayzero.stages.read import read

    pairs = [_pair(each) for each in vary or ()]
    varied = dict(pairs)
    if len(varied) < len(pairs):
        raise UsageError("--vary has one setting twice", "give each setting one value")
    ids = read_tokens(tokens) if tokens is not None else None
    with drawn_progress() as progress:
        found = bisect(read(str(release)), varied, tokens=ids, dtype=dtype, progress=progress)
    show(lambda: _contract(found), lambda: _overview(found), as_json)
    finish(not _passed(found))


def _pair(text: str) -> tuple[str, str]:
    """Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--vary {text}: there is no value", "write it like attention=sdpa, or layout=tp=2")
    return name.strip(), value.strip()


def _passed(found: Bisected) -> bool:
    """A setting that could not be run has not passed."""
    return not (found.blamed or found.plain_is_wrong or found.not_run)


def _contract(found: Bisected) -> dict[str, Any]:
    from dayzero.stages.check.locate import words

    return {"passed": _passed(found), "blamed": found.blamed, "not_run": found.not_run,
            "plain_is_wrong": found.plain_is_wrong, "tried": list(found.tried),
            "location": found.location and words.to_contract(found.location)}


def _overview(found: Bisected) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from dayzero.stages.check.locate import words

    table = Table("run", "places out of tolerance", "of")
    for each in found.tried:
        name = _listed(each.settings) or "plain"
        table.add_row(name, each.reason or str(each.guilty), "" if each.reason else str(each.places))
    if found.plain_is_wrong:
        end = "the run is wrong without any of the settings"
    elif found.blamed:
        end = f"makes the difference: {_listed(found.blamed)}"
    else:
        end = "no setting that was run makes a difference"
    if found.not_run:
        end += f"; could not be run: {_listed(found.not_run)}"
    return Group(table, Text(end), *([words.overview(found.location)] if found.location else []))


def _listed(settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
