"""The typer application that the verbs register with, and `--version`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dayzero import __version__

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Read a model release, check it, plan it, run it, prove it, and say how to launch it: on the day it appears.")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context,
          version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        sys.stdout.write(f"dayzero {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
