"""How releases state quantisation, as data (quantisation.toml). Loaded once, checked by type."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Method(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[methods]]: a key whose value names a scheme."""

    key: str
    """Key of the quantisation table."""
    values: list[str]
    """Its values, as fnmatch patterns in lower case."""
    scheme: str
    """The scheme; `{w}` and `{a}` are the stated bits of weights and activations."""
    only: list[str] = []
    """First words of the roles that it applies to; empty: every linear layer."""


class Element(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[elements]]: an element type of a table that describes weights."""

    types: list[str]
    """Spellings."""
    scheme: str
    """The scheme."""
    group: int | None = None
    """Values that share a scale; None: any number."""


class Statements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """quantisation.toml"""

    excludes: list[str]
    """Keys that list modules that are left plain."""
    weight_bits: list[str]
    """Keys of the bits of a weight."""
    activation_bits: list[str]
    """Keys of the bits of an activation."""
    group_sizes: list[str]
    """Keys of the number of values that share a scale."""
    zero_less: dict[str, dict[str, int]]
    """Key -> format of words along the inputs -> what their zero points are stored less by."""
    plain: list[str]
    """Segments of the names of modules that engines keep plain whatever a config says."""
    fusions: list[list[str]]
    """Parameters that engines commonly put in one."""
    methods: list[Method]
    """Values that name schemes."""
    elements: list[Element]
    """Element types."""
    blocks: dict[str, tuple[int, int]]
    """Scheme -> rows and columns of a block where that is part of the scheme."""


@cache
def statements() -> Statements:
    """How releases state quantisation."""
    return msgspec.toml.decode(files("dayzero.data").joinpath("quantisation.toml").read_bytes(), type=Statements)
