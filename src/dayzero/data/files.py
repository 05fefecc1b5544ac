"""Reading the TOML files that are shipped as facts."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from dayzero.errors import TargetError, did_you_mean


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the files of a folder of facts, without their ending, sorted."""
    entries = files(__package__).joinpath(folder).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def load(folder: str, name: str, kind: str, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of one file. Raises TargetError with the nearest known name; `also` are names that are no files."""
    known = names(folder)
    if name not in known:
        raise TargetError(f"no {kind} is named {name!r}",
                          f"{did_you_mean(name, (*known, *also))}known: {', '.join((*known, *also))}")
    return tomllib.loads(files(__package__).joinpath(folder, f"{name}.toml").read_text())
