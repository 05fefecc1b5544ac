"""Which config keys an engine reads in which part of the model, against those that the release states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.keys import Key, Table, keys, language_tables, lookup, stated
from dayzero.data.vocabulary import vocabulary
from dayzero.schema import ModelSpec, Release
from dayzero.schema.target import EngineRequest

ANY = "*"
"""The role of keys that are read in every part."""


@dataclass(frozen=True)
class Fact:
    """A fact that the config states and that changes the arithmetic."""

    key: Key
    """What it is."""
    names: tuple[str, ...]
    """Its keys in this config, without the tables of the language model before them; the first one names it."""
    value: Any
    """Its value."""
    roles: tuple[str, ...]
    """Parts of this model that use it."""


class Reads:
    """What an engine reads."""

    def __init__(self, facts: EngineRequest) -> None:
        self.by_role = {role: [relative(name) for name in names] for role, names in (facts.config_reads or {}).items()}
        self.defaults: Mapping[str, Any] = facts.config_defaults or {}
        common = self.by_role.get(ANY, [])
        self.complete = set(self.by_role) == {ANY} and any(name in _sizes() for name in common)
        """Whether one list for all parts is all that is known, and is the list of a whole model: it holds sizes."""

    def checked(self, role: str) -> bool:
        """Whether it is known which keys the part reads."""
        return role in self.by_role or self.complete

    def reads(self, roles: Iterable[str], name: str) -> bool:
        """Whether a key is read in one of the roles: itself, the table that holds it, or, unless that is a table of
        rotary parameters, a table's key by its own name."""
        top, _, leaf = name.partition(".")
        names = {name, top} if top in keys().rope.tables else {name, top, leaf.rpartition(".")[2] or top}
        listed = [entry for role in {*roles, ANY} for entry in self.by_role.get(role, ())]
        return any(one == entry or fnmatchcase(one, entry) for entry in listed for one in names)


def relative(path: str) -> str:
    """A dotted key without the tables of the language model before it."""
    parts = path.split(".")
    while len(parts) > 1 and parts[0] in vocabulary().config.text:
        parts.pop(0)
    return ".".join(parts)


def unread(release: Release, reads: Reads) -> Iterator[tuple[Fact, str]]:
    """Facts that an engine leaves unread, each with the part (once for each) that should read it."""
    for fact in arithmetic(release):
        if fact.key.fixed or any(reads.defaults.get(name, ...) == fact.value for name in fact.names):
            continue
        roles = [role for role in fact.roles if reads.checked(role)]
        if fact.key.once and roles:
            lost = [] if _read(fact, reads, fact.roles) else roles[:1]
        else:
            lost = [role for role in roles if not _read(fact, reads, [role])]
        for role in lost[:1] if reads.complete else lost:
            yield fact, ANY if reads.complete else role


def _read(fact: Fact, reads: Reads, roles: Iterable[str]) -> bool:
    return any(reads.reads([*roles, *fact.key.also], name) for name in fact.names)


def arithmetic(release: Release) -> list[Fact]:
    """Every fact of the config that changes the arithmetic of this model."""
    raw, found = release.config, []
    named = {name for key in keys().keys for name in key.names}
    for key in keys().keys:
        if not _applies(key.when, release):
            continue
        exact = [name for name in key.names if "*" not in name]
        groups = [exact, *([name] for name in _matching(raw, key.names, named))]
        for names in groups:
            said = [(relative(path), value) for _, path, value in stated(raw, names)
                    if not is_neutral(value, key.neutral, raw)]
            if said:
                found.append(Fact(key=key, names=tuple(name for name, _ in said), value=said[0][1],
                                  roles=tuple(role for role in key.roles if has_role(release.model, role))))
    return found


def is_neutral(value: Any, neutral: list[Any], raw: Table) -> bool:
    """Whether a value changes nothing."""
    if isinstance(value, list):
        return all(is_neutral(item, neutral, raw) for item in value)
    if value is None or value is False or value == "" or value == {}:
        return True
    return any(value == (_named(raw, item) if isinstance(item, str) and item.startswith("$") else item)
               for item in neutral if not isinstance(value, bool))


def has_role(model: ModelSpec, role: str) -> bool:
    """Whether the model has such a part."""
    blocks = model.feed_forwards.values()
    if role in ("router", "routed_experts"):
        return any(block.experts for block in blocks)
    if role == "shared_experts":
        return any(block.shared_experts or block.shared_width for block in blocks)
    if role == "dense_mlp":
        return any(not block.experts and block.width for block in blocks)
    return True


def _applies(when: str, release: Release) -> bool:
    if when == "sliding":
        return any(attention.window for attention in release.model.attentions.values())
    if when == "groups":
        groups = next((key for key in keys().keys if "n_group" in key.names), None)
        return groups is not None and any(not is_neutral(value, groups.neutral, release.config)
                                          for _, _, value in stated(release.config, groups.names))
    return True


def _matching(raw: Table, patterns: list[str], named: set[str]) -> list[str]:
    """Keys of the language model's tables that match one of the patterns with * and have no entry of their own."""
    wild = [pattern for pattern in patterns if "*" in pattern]
    return sorted({key for _, table in language_tables(raw) for key in table if wild and key not in named
                   and any(fnmatchcase(key, pattern) for pattern in wild)})


def _named(raw: Table, item: str) -> Any:
    return next((value for _, table in language_tables(raw) if (value := lookup(table, item[1:])) is not None), None)


def _sizes() -> set[str]:
    config = vocabulary().config
    return {name for group in (config.sizes, config.counts) for names in group.values() for name in names}
