"""Which functions of kernel libraries one of our operators stands in for (stand_ins.toml)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[packages.NAME]: a library that needs another machine."""

    version: str
    """Version whose functions the table describes; what code that asks for it is told."""
    distributions: tuple[str, ...]
    """Names under which it is published."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[stand_in]]: one function or class, under all its names."""

    names: tuple[str, ...]
    """`module:attribute`, today's name first, then those of other versions."""
    adapter: str
    """`module:attribute` in runtime/stand_ins that takes the library's arguments."""
    source: str
    """Package and version that its arguments were read from."""
    op: str = ""
    """Operator that computes it; empty: it is plain torch code."""
    counted: bool = True
    """Whether its calls are counted; not so for decorators and the like."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[question]]: a function of the library of models that says whether a package is usable."""

    name: str
    """`module:function`; one that this version does not have is left out."""
    package: str
    """The package that it is about."""
    library: bool = False
    """Whether the library's own code is told yes as well."""


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[fallback]]: how a model file's own function that computes one of our operators is known."""

    names: tuple[str, ...]
    """fnmatch patterns, one of which its name must match."""
    parameters: tuple[str, ...]
    """Parameters that it must have."""
    adapter: str
    """`module:attribute` in runtime/stand_ins; called with its arguments by name."""
    op: str
    """Operator that computes it."""
    without: tuple[str, ...] = ()
    """Parameters that it must not have."""


class StandInTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of stand_ins.toml."""

    packages: dict[str, Package]
    """Import name -> what is known of it."""
    question: tuple[Question, ...]
    """All functions that say whether a package is usable."""
    stand_in: tuple[Row, ...]
    """All functions and classes that there is a stand-in for."""
    fallback: tuple[Fallback, ...]
    """In the order in which they are tried."""


@cache
def stand_ins() -> StandInTable:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    return msgspec.toml.decode(files(__package__).joinpath("stand_ins.toml").read_bytes(), type=StandInTable)
