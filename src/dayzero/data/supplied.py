"""Names that shipped code takes from a library and that later versions lack, with what they meant (supplied.toml)."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

_NAME = re.compile(r"(?P<owner>[\w.]+)\.(?P<attribute>\w+)(\[(?P<key>\w+)\]|\((?P<argument>\w+)\))?")


class Supplied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[supplied]]: a name, and what is given for it."""

    name: str
    """`owner.attribute` of a module or class; `owner.table[key]`, an entry of a table; `owner.function(argument)`, an
    argument that a function took."""
    gives: str
    """Dotted name of what is given; for an argument of what is called with the function and returns one that has it."""
    what: str
    """What that is, for people."""
    source: str
    """How it is known what the name meant."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name")

    def _part(self, part: str) -> str:
        match = _NAME.fullmatch(self.name)
        return (match[part] or "") if match else ""

    @property
    def owner(self) -> str:
        """Dotted name of the module or class."""
        return self._part("owner")

    @property
    def attribute(self) -> str:
        """Its attribute: what is given, or the table or function that it is given to."""
        return self._part("attribute")

    @property
    def key(self) -> str:
        """Key of the table; empty: it is none."""
        return self._part("key")

    @property
    def argument(self) -> str:
        """Argument of the function; empty: it is none."""
        return self._part("argument")

    @property
    def words(self) -> set[str]:
        """What a file that uses it must mention."""
        return {self.attribute, self.key, self.argument} - {""}


@cache
def supplied() -> tuple[Supplied, ...]:
    """The whole table. Raises msgspec.ValidationError when the file is wrong."""
    text = files(__package__).joinpath("supplied.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["supplied"], tuple[Supplied, ...])
