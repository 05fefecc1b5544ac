"""Names that a library no longer has since some version (libraries.toml): what releases' code may still import."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec


class Removal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[removed]]: a name that is gone."""

    name: str
    """Dotted name, of a module or of something in it."""
    since: str
    """First version without it."""
    source: str
    """How that is known."""
    until: str | None = None
    """First later version that has it again; None: none has."""


@cache
def removals() -> tuple[Removal, ...]:
    """All names that are known to be gone."""
    text = files(__package__).joinpath("libraries.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["removed"], tuple[Removal, ...])
