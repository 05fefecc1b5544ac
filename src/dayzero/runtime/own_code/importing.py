"""Imports the classes that a release's auto_map names, from its own files and as one package.

Runs somebody else's code: only in a confined process.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from dayzero.errors import NotPossible
from dayzero.runtime import stand_ins
from dayzero.runtime.library import LIBRARY_ERRORS, PACKAGE, cause

from . import absent
from .adapting import adapt
from .entries import Brought, Entries
from .supplying import supply


class Loaded(NamedTuple):
    """Classes of the release."""

    config: Any
    """Of the configuration; None: the library's."""
    model: Any
    """Of the model."""
    supplied: tuple[str, ...]
    """Names that the code uses and the installed library lacks, and what was given for them."""


def load(release: Brought, named: Entries) -> Loaded:
    """The classes. Raises NotPossible, with file and line, when the code cannot be imported here."""
    root = Path(release.root or "")
    stand_ins.install()
    supplied = supply(_sources(root))
    package = _package(root)
    finder = absent.install(package, root)
    try:
        config = _class(package, named.config) if named.config else None
        model = _class(package, named.model)
    except (*LIBRARY_ERRORS, OSError, SyntaxError) as error:
        raise NotPossible(f"the code of {release.name} cannot be imported: {cause(error)} ({place(error, root)})",
                          "install what it needs, in the version that it was written for") from error
    lacking = (f"{name}: not installed; what the code makes with it is left out" for name in finder.absent)
    return Loaded(config, model, (*supplied, *lacking, *adapt(package)))


def place(error: BaseException, root: Path) -> str:
    """`file:line` of the innermost line of the release's code that an error went through; else where it was raised."""
    found = innermost = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        innermost = f"{file.name}:{trace.tb_lineno}"
        if file.is_relative_to(root):
            found = f"{file.relative_to(root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        name = Path(error.filename).name
        return name if error.lineno is None else f"{name}:{error.lineno}"
    return found or innermost


def _package(root: Path) -> str:
    """The name of a package whose modules are the release's files."""
    name = f"{PACKAGE}.{re.sub(r'[^0-9A-Za-z_]', '_', root.name) or 'release'}"
    for dotted, path in ((PACKAGE, []), (name, [str(root)])):
        module = sys.modules.setdefault(dotted, types.ModuleType(dotted))
        module.__path__ = path
    return name


def _class(package: str, named: str) -> Any:
    module, _, name = named.rpartition(".")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def _sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))
