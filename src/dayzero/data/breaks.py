"""What stops graph capture by torch, read from breaks.toml."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Places that ask for the value of a tensor."""

    kinds: tuple[str, ...]
    """Kinds of control flow."""
    what: str
    """What happens, in words."""
    compile: str
    """What torch.compile does."""
    export: str
    """What torch.export does."""
    branch: str
    """What torch.export does where the answer decides the way."""


class Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that do something beside computing."""

    kind: str
    """Name of the group."""
    names: tuple[str, ...]
    """With a dot: matched from the left; without: the last part of what is called."""
    what: str
    """What happens, in words."""
    compile: str
    """What torch.compile does."""
    export: str
    """What torch.export does."""


class Breaks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of breaks.toml."""

    values: tuple[Values, ...]
    """In no order."""
    calls: tuple[Calls, ...]
    """The first that matches counts."""


@cache
def breaks() -> Breaks:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    return msgspec.toml.decode(resources.files("dayzero.data").joinpath("breaks.toml").read_bytes(), type=Breaks)
