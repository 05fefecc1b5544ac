"""`dayzero check record --engine`: what the options say of an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dayzero.errors import UsageError

if TYPE_CHECKING:
    from dayzero.stages.check.inside import Engine

Name = Annotated[str | None, typer.Option(
    "--engine", help="Record inside of this engine, which is started for it in one process (docs/check.md).")]
Python = Annotated[Path | None, typer.Option(
    "--python", help="Of --engine: the Python that has it; default: the one that runs dayzero.")]
Options = Annotated[str | None, typer.Option(
    "--engine-options", metavar="JSON", help="Of --engine: options by its own names, like '{\"max_num_seqs\": 4}'.")]


def engine_of(name: str | None, python: Path | None, options: str | None, top: int) -> Engine | None:
    """None: no engine. Raises UsageError."""
    if name is None:
        if python is not None or options is not None:
            raise UsageError("--python and --engine-options are of an engine", "add --engine NAME")
        return None
    from dayzero.stages.check.inside import Engine

    return Engine(name=name, python=str(python or sys.executable), options=_object(options), top=top)


def _object(text: str | None) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object]) if text is not None else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"--engine-options is no JSON object: {error}",
                         'write it like \'{"max_num_seqs": 4}\'') from None
