"""Which config keys change a model's arithmetic and where (keys.toml), and the tables of a config that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from .vocabulary import vocabulary

Table = Mapping[str, Any]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[keys]]: one fact that changes the arithmetic."""

    names: list[str]
    """Its spellings, the usual one first."""
    roles: list[str]
    """Parts of the model that use it."""
    does: str
    """What it is, for messages."""
    neutral: list[Any] = []
    """Values that change nothing, beside null, false and what is empty."""
    once: bool = False
    """Whether it is enough that one of the roles reads it."""
    also: list[str] = []
    """Other parts where reading it is enough."""
    when: Literal["", "sliding", "groups"] = ""
    """Without what it says nothing."""
    fixed: bool = False
    """Whether classes for one architecture usually have it built in."""


class RopeWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[rope]: how configs state rotary positions."""

    bases: list[str]
    """Keys of the base."""
    tables: list[str]
    """Tables of rotary parameters."""
    kind_of_scaling: list[str]
    """Keys, in such a table, of the kind of scaling."""
    idle: list[str]
    """Keys of such a table that change nothing by themselves."""
    no_scaling: list[str]
    """Kinds that scale nothing."""
    scalings: list[str]
    """Kinds that scale."""
    named_scaling: list[str]
    """Tables whose name is the kind."""
    none: list[str]
    """Keys that are true where nothing is rotated."""
    position_types: list[str]
    """Keys that name the kind of positions."""
    no_rotation: list[str]
    """Kinds of positions that rotate nothing."""
    own_bases: dict[str, list[str]]
    """Kind of layer -> keys of its own base."""
    layouts: dict[str, list[str]]
    """Part -> keys that are true where neighbours are rotated together."""
    half_layouts: dict[str, list[str]]
    """Part -> keys that are true where halves are."""


class PerLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[per_layer]: lists about layers."""

    lists: list[str]
    """fnmatch patterns of lists with one entry for each layer."""
    numbers: dict[str, list[str]]
    """Pattern of vocabulary.toml that is a list of layer numbers -> kinds that its layers have."""


class ValueWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[values]: what configs state as values, for the rule about values that make no sense."""

    positive: list[str]
    """fnmatch patterns of keys, at any depth of the language model's tables, whose numbers are finite and above 0."""
    activations: list[str]
    """Words for activations."""
    layers: list[str]
    """Words for kinds of layers that libraries know, beside those of vocabulary.toml."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """keys.toml"""

    keys: list[Key]
    """Keys that change the arithmetic."""
    rope: RopeWords
    """Rotary positions."""
    per_layer: PerLayer
    """Lists about layers."""
    values: ValueWords
    """Known values."""
    usual: dict[str, list[str]]
    """Fact -> spellings that need no remark."""
    modules: dict[str, list[str]]
    """Part of the model -> words in the names of its classes."""


@cache
def keys() -> Keys:
    """The shipped table. Raises msgspec.ValidationError when the file is wrong."""
    return msgspec.toml.decode(files("dayzero.data").joinpath("keys.toml").read_bytes(), type=Keys)


def language_tables(raw: Table) -> list[tuple[str, Table]]:
    """(path with a dot at its end, table) of the language model's tables, innermost first; the outermost is last."""
    tables: list[tuple[str, Table]] = [("", raw)]
    names = vocabulary().config.text
    while True:
        path, table = tables[0]
        inner = next((name for name in names if isinstance(table.get(name), Mapping)), None)
        if inner is None:
            return tables
        tables.insert(0, (f"{path}{inner}.", table[inner]))


def lookup(table: Table, dotted: str) -> Any:
    """Value at a dotted key; None where there is none."""
    value: Any = table
    for part in dotted.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def stated(raw: Table, names: list[str]) -> Iterator[tuple[str, str, Any]]:
    """(name, path, value) of each of the names that the language model's tables state, not null, in their order."""
    tables = language_tables(raw)
    for name in names:
        for path, table in tables:
            value = lookup(table, name)
            if value is not None:
                yield name, f"{path}{name}", value
                break


def rotates_nothing(raw: Table) -> bool:
    """Whether the config says that there are no rotary positions."""
    words = keys().rope
    if any(value is True for _, _, value in stated(raw, words.none)):
        return True
    return any(value in words.no_rotation for _, _, value in stated(raw, words.position_types))
