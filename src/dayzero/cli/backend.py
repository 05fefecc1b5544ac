"""`dayzero backend`: which kinds of device there are, and whether a backend does what the protocol says."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dayzero.errors import UsageError

from .app import app
from .options import AsJson, drawn_progress, finish, names_of, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dayzero.runtime.conformance import Conformance

_COLOURS = {"pass": "green", "fail": "bold red", "skip": "yellow"}


@app.command()
def backend(
    action: Annotated[Literal["list", "check"], typer.Argument(
        help="list: all backends, and why one cannot be used; check: the conformance suite.")],
    name: Annotated[str | None, typer.Argument(help="Backend to check.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this check only; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Backends: list them, or check that one does what the protocol says (docs/backends.md)."""
    if action == "list":
        if name or only:
            raise UsageError("list takes no backend and no check", "dayzero backend check NAME")
        rows = _backends()
        show(lambda: rows, lambda: _list_table(rows), as_json)
        return
    if name is None:
        raise UsageError("there is no backend to check", "dayzero backend check NAME; dayzero backend list names them")
    found = _checked(name, names_of(only) or ())
    show(lambda: {"backend": found.backend, "device": found.device, "passed": found.passed, "checks": found.outcomes},
         lambda: _check_table(found), as_json)
    finish(not found.passed)


def _checked(name: str, only: tuple[str, ...]) -> Conformance:
    from dayzero.runtime.conformance import check_backend

    with drawn_progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite looks at those that matter
        return check_backend(name, only, progress)


def _backends() -> list[dict[str, Any]]:
    """Name, whether it can be used, and what there is, or why not."""
    from dayzero.backends import backends

    return [{"name": each.name, "available": not (reason := each.available()), "reason": reason,
             "devices": each.device_count, "described": each.describe()} for each in backends()]


def _list_table(rows: list[dict[str, Any]]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table("backend", "devices", "what there is", title="backends")
    for row in rows:
        told = "; ".join(f"{what}: {value}" for what, value in row["described"].items())
        table.add_row(escape(row["name"]), str(row["devices"]), escape(told or f"cannot be used: {row['reason']}"))
    return table


def _check_table(found: Conformance) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    counts = {status: sum(each.status == status for each in found.outcomes) for status in _COLOURS}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    table = Table("check", "result", "seconds", "what was found", caption=escape(found.device),
                  title=escape(f"backend {found.backend}: {'pass' if found.passed else 'fail'} ({told})"))
    for each in found.outcomes:
        colour = _COLOURS[each.status]
        table.add_row(escape(each.check), f"[{colour}]{each.status}[/]", f"{each.seconds:.1f}", escape(each.detail))
    return table
