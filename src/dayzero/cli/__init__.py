"""The command line: one verb for each stage, and a few for files and facts. Parse, call, print, exit code; no logic.

Exit codes: 0 it works, 1 a verdict is fail, 2 the request is wrong (two lines on standard error), 130 interrupted.
With --json one object goes to standard output; everything else goes to standard error.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from dayzero.errors import DayzeroError, NotPossible

from . import stages, tools  # noqa: F401  (each registers its verbs)
from .app import app

__all__ = ["app", "main"]

_INTERRUPTED = 130


def _stop(lines: tuple[str, str], code: int) -> NoReturn:
    sys.stderr.write(f"error: {lines[0]}\nhint: {lines[1]}\n")
    sys.exit(code)


def main() -> None:
    """Entry point of the `dayzero` command."""
    from typer.exceptions import Abort, TyperException

    try:
        code = app(standalone_mode=False)
    except DayzeroError as error:
        if log := getattr(error, "log", ""):
            sys.stderr.write(f"{log}\n")
        _stop((error.message, error.hint), error.exit_code)
    except NotPossible as outcome:
        _stop((f"not possible here: {outcome.reason}", outcome.hint or "see the documentation"), 2)
    except TyperException as error:
        _stop((error.format_message(), "see dayzero --help"), 2)
    except (KeyboardInterrupt, Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:  # typer turns a KeyboardInterrupt into this code
        _stop(("interrupted", "the finished stages are kept; the same command goes on from there"), _INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
