"""The command line: one verb for each stage, and a few for files and facts. Parse, call, print, exit code; no logic.

Exit codes: 0 it works, 1 a verdict is fail or a stage failed, 2 the request is wrong or the system refuses (two lines
on standard error), 130 interrupted, 141 the reader of the output has gone, 143 ended by SIGTERM.
With --json one object goes to standard output; everything else goes to standard error.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

from dayzero.errors import DayzeroError, NotPossible

from . import (  # noqa: F401  (each registers its verbs)
    backend,
    check,
    plan,
    pool,
    probe,
    run,
    score,
    stages,
    streams,
    tools,
    trace,
    twin,
    verify,
)
from .app import app

for _name in sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name.startswith("check_")):
    import_module(f"{__name__}.{_name}")

__all__ = ["app", "main"]

_INTERRUPTED, _NO_READER = 130, 141
_GO_ON = "run the same command again"
_SYSTEM = "look whether it is there, may be used and has space left"


def main() -> None:
    """Entry point of the `dayzero` command."""
    streams.prepare()
    code = _verb()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        streams.give_up(1, 2)
    sys.exit(code)


def _named(error: Exception) -> str:
    """`dayzero VERB` of the verb that a wrong request was about, or `dayzero`."""
    context, words = getattr(error, "ctx", None), list[str]()
    while context and context.parent:
        context, words = context.parent, [context.info_name, *words]
    return " ".join(["dayzero", *words])


def _verb() -> int:
    """Run the verb and tell what went wrong; the exit code."""
    from typer.exceptions import Abort, TyperException

    lines, log, code = None, "", 0
    try:
        streams.refuse_undecodable(sys.argv[1:])
        returned = app(standalone_mode=False)
        with streams.output():
            sys.stdout.flush()
        code = returned if isinstance(returned, int) else 0
    except DayzeroError as error:
        lines, log, code = (error.message, error.hint), getattr(error, "log", ""), error.exit_code
    except NotPossible as outcome:
        lines, code = (f"not possible here: {outcome.reason}", outcome.hint or "see the documentation"), 2
    except TyperException as error:
        lines, code = (error.format_message(), f"see {_named(error)} --help"), 2
    except (KeyboardInterrupt, Abort):
        code = _INTERRUPTED
    except streams.Ended as signal:
        lines, code = ("ended by a signal", _GO_ON), int(signal.code or 0)
    except BrokenPipeError:
        code = _NO_READER
    except OSError as error:  # about the machine: a disk, a permission
        where = f"{error.filename}: " if error.filename else ""
        lines, code = (f"{where}{error.strerror or error}", _SYSTEM), 2
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # typer makes an exit of 1 from it
            raise
        code = _NO_READER
    if code == _INTERRUPTED:  # typer turns a KeyboardInterrupt into this code
        lines = ("interrupted", _GO_ON)
    if lines:
        streams.tell(lines, log)
    return code
