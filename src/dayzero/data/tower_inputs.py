"""How towers are called: sizes of their input by keys of configs, and the forms in which it is given; read from
tower_inputs.toml."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One argument."""

    names: tuple[str, ...]
    """What it may be called; the first that the function has."""
    shape: tuple[str, ...] = ()
    """Expressions in the sizes, of a tensor without values."""
    values: tuple[tuple[str, ...], ...] = ()
    """Expressions of whole numbers that it holds, where code needs them."""
    dtype: Literal["float", "int", "bool"] = "float"
    """Of a tensor without values; float: that of the weights."""


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[ways]]: a form in which a tower takes its input."""

    tensors: tuple[Tensor, ...]
    """All that is given."""


class Towers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of tower_inputs.toml."""

    methods: tuple[str, ...]
    """Methods of a wrapper that run a tower."""
    configs: dict[str, tuple[str, ...]]
    """Method -> keys of the wrapper's config that may hold the tower's."""
    sizes: dict[str, tuple[str, ...]]
    """Size -> expressions in keys of the config and sizes before it; the first that can be evaluated counts."""
    assumed: dict[str, int]
    """Size where no config states one."""
    ways: tuple[Way, ...]
    """In the order in which they are tried."""


@cache
def tower_inputs() -> Towers:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    return msgspec.toml.decode(files("dayzero.data").joinpath("tower_inputs.toml").read_bytes(), type=Towers)
