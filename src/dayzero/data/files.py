"""Reading the TOML files that are shipped as facts."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dayzero.errors import TargetError, did_you_mean

_LIMIT = 2**20
"""Bytes of a user's own file."""


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the files of a folder of facts, without their ending, sorted."""
    entries = files(__package__).joinpath(folder).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def load(folder: str, name: str, kind: str, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of one file, not to be changed. Raises TargetError with the nearest known name; `also` are names that
    are no files."""
    known = names(folder)
    if name not in known:
        raise TargetError(f"no {kind} is named {name!r}",
                          f"{did_you_mean(name, (*known, *also))}known: {', '.join((*known, *also))}")
    return _content(folder, name)


@cache
def _content(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(folder, f"{name}.toml").read_text())


def load_own(path: Path, hint: str) -> dict[str, Any]:
    """The content of a user's own file. Raises TargetError unless it is TOML of at most 1 MiB."""
    try:
        if not path.is_file():  # a pipe would never end
            raise TargetError(f"{path} is no file", hint)
        with path.open("rb") as file:
            content = file.read(_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise TargetError(f"cannot read {path}: {error}", hint) from None
    if len(content) > _LIMIT:
        raise TargetError(f"{path} has more than {_LIMIT} bytes", hint)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{path} is not TOML: {error}", hint) from None
