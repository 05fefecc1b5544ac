"""The ledger of config keys: for every key that changes the arithmetic, where the model's code reads it (the
release's own, or that of the installed transformers), and whether the engine does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.markup import escape
from rich.table import Table

from dayzero.data.keys import lookup
from dayzero.schema import Engine, Release
from dayzero.schema.consumption import Consumption
from dayzero.schema.target import EngineRequest

from .keys import shown
from .reads import Reads, arithmetic, relative
from .rope import READERS
from .syntax import Use, class_defaults, model_code, uses


@dataclass(frozen=True)
class Entry:
    """One key in one part of the model."""

    key: str
    """The key, without the tables of the language model before it."""
    value: Any
    """Its value in config.json."""
    does: str
    """What it is."""
    role: str
    """Part of the model that uses it."""
    code: tuple[str, ...]
    """`file:line class` of each place in that code that reads it, in whatever part; empty: none, or no code."""
    default: Any
    """Default of the configuration class; None: none is stated."""
    engine: bool | None
    """Whether the engine reads it for this part; None: not known."""
    fixed: bool
    """Whether classes for one architecture usually have it built in."""
    recorded: tuple[str, ...] | None
    """`file:line` of each place of the installed library that read it while the model was built and run; None: that was
    not recorded."""


def config_ledger(release: Release, engine: Engine | None = None,
                  consumed: Consumption | None = None) -> tuple[Entry, ...]:
    """Every key of the config that changes the arithmetic at its value, for each part of the model that uses it; of
    what an engine reads nothing is known without one, nor without `consumed` of what the library read."""
    sources, reads = model_code(release), Reads(engine.facts if engine else EngineRequest())
    read, defaults = uses(sources), class_defaults(sources)
    entries: dict[tuple[str, str], Entry] = {}
    for key, value, does, role, also, fixed in (*_facts(release), *_unknown(release, read)):
        top, leaf = key.split(".")[0], key.rpartition(".")[2]
        is_read = reads.reads([role, *also], key) if reads.checked(role) else None
        entries[key, role] = Entry(key=key, value=value, does=does, role=role, code=_places(read, {top, leaf}),
                                   default=defaults.get(leaf), engine=is_read, fixed=fixed,
                                   recorded=consumed.places(key) if consumed and not consumed.impossible else None)
    return tuple(entries.values())


def _facts(release: Release) -> Iterator[tuple[str, Any, str, str, tuple[str, ...], bool]]:
    """Key, value, what it is, part, other parts where reading it is enough, built in."""
    for fact in arithmetic(release):
        for role in fact.roles:
            others = fact.roles if fact.key.once else ()
            yield fact.names[0], fact.value, fact.key.does, role, (*others, *fact.key.also), fact.key.fixed
    for rope in release.model.ropes.values():
        for path, value, does in ((rope.base_key, rope.base, "the base of the rotary frequencies"),
                                  (rope.table, rope.scaling, "how they are stretched")):
            if path:
                yield relative(path), value, does, "rotary", READERS, False


def _unknown(release: Release, read: list[Use]) -> Iterator[tuple[str, Any, str, str, tuple[str, ...], bool]]:
    """Keys that nothing here understands, and that the shipped code reads in some part of the model."""
    for key in release.model.unknowns:
        roles = {use.role for use in read if use.role and use.key == key.rpartition(".")[2]}
        for role in sorted(roles):
            yield relative(key), lookup(release.config, key), "not known here", role, (), True


def _places(read: list[Use], names: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{use.file}:{use.line} {use.module}".rstrip() for use in read if use.key in names))


def ledger_table(entries: tuple[Entry, ...], engine: Engine | None = None) -> Table:
    """The ledger for a terminal: one row for the parts of a model that are alike; `engine`: the one that was asked
    about."""
    engine_known = any(entry.engine is not None for entry in entries)
    watched = any(entry.recorded is not None for entry in entries)
    notes = [] if any(entry.code for entry in entries) else ["there is no code of this model here"]
    if engine and not engine_known:
        notes.append(f"whether the engine {engine.name} reads them is not known: no config_reads is stated for these "
                     "parts, in its profile or in [engine] of the target")
    table = Table("key", "value", "part of the model", box=None, caption_justify="left",
                  caption=escape("\n".join(notes)))
    table.add_column("the model's code reads it", overflow="fold")
    if watched:
        table.add_column("read when it was run", overflow="fold")
    if engine_known:
        table.add_column("the engine reads it")
    for (key, value, place, recorded, reads), alike in groupby(entries, key=_shown):
        roles = ", ".join(entry.role for entry in alike)
        cells = (key, value, roles, place, *([recorded] if watched else []), *([reads] if engine_known else []))
        table.add_row(*map(escape, cells))
    return table


def _shown(entry: Entry) -> tuple[str, str, str, str, str]:
    """Key, value, where the code reads it, where the library did, whether the engine does."""
    words = {True: "yes", False: "no", None: "not known"}
    engine = "no (usually built in)" if entry.engine is False and entry.fixed else words[entry.engine]
    recorded = "" if entry.recorded is None else _first(entry.recorded) or "nowhere"
    return entry.key, shown(entry.value), _first(entry.code), recorded, engine


def _first(places: tuple[str, ...]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return "".join(places[:1]).rpartition("/")[2] + more
