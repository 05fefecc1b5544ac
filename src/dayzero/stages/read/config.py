"""config.json as facts: each has many spellings and may stand in a nested table; every value keeps its source.

What nothing here understands is listed, not dropped: see `Config.unknown_keys`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import translate
from functools import cache
from itertools import islice
from math import isfinite
from typing import Any, NoReturn

from dayzero.data.classes import class_defaults, class_facts
from dayzero.data.keys import keys, language_tables, lookup
from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError

LIMIT = 1 << 40
"""No dimension of a model is larger; a config that says so is damaged."""
DEEPEST = 32
"""Tables inside tables; real configs have five."""
LIMITS = {"layers": 100_000, "mtp_layers": 100_000, "experts": 1_000_000}
DEFAULT = "default: "
"""How the source of a value begins that the config does not state."""
LISTED = ("dense_width", "expert_width", "kv_heads")
"""What some configs state for each layer."""
OUTERMOST = ("tied",)
"""What the outermost table has the last word about: the whole model is built from it."""
MOST_UNKNOWN = 1000
"""Keys that are listed one by one; a model has a few hundred in all."""

Table = Mapping[str, Any]


class Config:
    """A config with its facts found by vocabulary name. `sources` fills up with what was asked for, `unclear` with
    values that were not understood."""

    def __init__(self, raw: object, name: str = "config.json", beside: Mapping[str, tuple[Table, str]] | None = None,
                 ) -> None:
        """`raw`: the decoded JSON. `beside`: fact -> (table, source) that other files of the release state; they count
        where `raw` is silent. Raises ReleaseError if `raw` is not an object, or nested beyond reason."""
        if not isinstance(raw, Mapping):
            raise ReleaseError(f"{name} is not a JSON object", "download it again from where the release is published")
        _refuse_deep(name, raw)
        self.name = name
        self.raw = raw
        self.sources: dict[str, str] = {}
        self.unclear: list[str] = []
        self._tables = language_tables(raw)
        self.model_types = _model_types(self._tables)
        self._beside = beside or {}

    def find(self, fact: str) -> tuple[Any, str] | None:
        """Value and dotted path of a fact, first spelling first; None when it is not stated or null. What the class of
        a known model type takes for an absent key has a path that begins with `default: `."""
        absent = True
        for spelling in _spellings()[fact]:
            for path, table in self._tables:
                value = lookup(table, spelling)
                if value is not None:
                    return value, f"{path}{spelling}"
                absent = absent and spelling not in table
        return self._default(fact) if absent else None

    def _default(self, fact: str) -> tuple[Any, str] | None:
        known = class_defaults()
        for kind in self.model_types:
            if kind in class_facts() and fact in (built_in := class_facts()[kind]).facts:
                value: Any = built_in.facts[fact]
                same = self.find(value) if isinstance(value, str) else None
                return same[0] if same else value, f"{DEFAULT}built into model type {kind} ({built_in.source})"
            for spelling in _spellings()[fact]:
                if spelling in known.defaults.get(kind, ()):
                    return known.defaults[kind][spelling], (
                        f"{DEFAULT}{spelling} of model type {kind} ({known.library})")  # fmt: skip
        return None

    def source(self, path: str) -> str:
        """Where a value with that path, as `find` gives it, is from."""
        return path if path.startswith(DEFAULT) else f"{self.name}: {path}"

    def integer(self, fact: str, least: int = 0) -> int | None:
        """A count; 0 and null are None unless `least` is 1, then 0 is an error. Raises ReleaseError."""
        found = self.find(fact)
        if found is None:
            return None
        value, path = found
        if fact in LISTED and isinstance(value, list) and value and all(type(item) is int for item in value):
            value = self._most_common(value, path)
        limit = LIMITS.get(fact, LIMIT)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
            self._wrong(path, value, f"an integer from {least} to {limit}")
        self.sources[fact] = self.source(path)
        return value or None

    def _most_common(self, values: list[int], path: str) -> int:
        """One value for a list with an entry for each layer."""
        value, _ = Counter(values).most_common(1)[0]
        if len({*values}) > 1:
            self.unclear.append(f"{path}: {len({*values})} values (taken as {shortened(value)})")
        return value

    def size(self, fact: str) -> int:
        """A positive integer that must be stated. Raises ReleaseError with the key's name."""
        value = self.integer(fact, least=1)
        if value is None:
            keys = _spellings()[fact]
            raise ReleaseError(f"{self.name} does not state {keys[0]}", f"add it (also read: {', '.join(keys[1:5])})")
        return value

    def flag(self, fact: str) -> bool | None:
        """true or false; None when it is not stated. Raises ReleaseError."""
        outer = self.raw.get(_spellings()[fact][0]) if fact in OUTERMOST else None
        found = (outer, _spellings()[fact][0]) if outer is not None else self.find(fact)
        if found is None:
            return None
        value, path = found
        if not isinstance(value, bool):
            self._wrong(path, value, "true or false")
        self.sources[fact] = self.source(path)
        return bool(value)

    def text(self, fact: str) -> str:
        """A word; empty when it is not stated. The outermost table counts: it names the whole release."""
        for spelling in _spellings()[fact]:
            value = self.raw.get(spelling)
            if isinstance(value, str):
                self.sources[fact] = f"{self.name}: {spelling}"
                return value
        found = self.find(fact)
        return str(found[0]) if found and isinstance(found[0], str) else ""

    def names(self, fact: str) -> tuple[str, ...]:
        """A list of words; empty when it is not stated. Raises ReleaseError."""
        outer = self.raw.get(fact)
        found = (outer, fact) if outer is not None else self.find(fact)
        if found is None:
            return ()
        value, path = found
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(path, value, "a list of words")
        return tuple(value)

    def table(self, fact: str) -> Table | None:
        """A nested table; None when it is not stated, here or in a file beside the config. Raises ReleaseError."""
        found = self.find(fact)
        if found is None and fact in self._beside:
            beside, self.sources[fact] = self._beside[fact]
            return beside
        if found is None:
            return None
        if not isinstance(found[0], Mapping):
            self._wrong(found[1], found[0], "a table")
        self.sources[fact] = f"{self.name}: {found[1]}"
        table: Table = found[0]
        return table

    def variables(self) -> dict[str, int]:
        """All integers and flags of the language model by key, nested ones dotted; for expressions in cards."""
        values: dict[str, int] = {}
        for path, table in reversed(self._tables):
            for key, value in _leaves(table):
                if isinstance(value, int):
                    values[key] = values[path + key] = int(value)
        return values

    def unknown_keys(self) -> tuple[str, ...]:
        """Dotted keys that are stated, and that no entry of the vocabulary explains."""
        words = vocabulary().config
        skip = {*words.towers, *words.text}
        known = {spelling for spellings in _spellings().values() for spelling in spellings}
        known |= {name for key in keys().keys for name in key.names}
        plain = _plain_keys().fullmatch
        unknown: dict[str, None] = {}
        for path, table in self._tables:
            for key, value in _leaves(table, skip, plain):
                if value is not None and key not in known and not plain(key) and not plain(key.rpartition(".")[2]):
                    unknown[path + key] = None
        listed = [printable(key) for key in islice(unknown, MOST_UNKNOWN)]
        return (*listed, *([f"{len(unknown) - len(listed)} more keys"] if len(unknown) > len(listed) else []))

    def note(self, fact: str, source: str) -> None:
        """Say where a fact is from that was not read from the config."""
        self.sources[fact] = source

    def _wrong(self, path: str, value: object, expected: str) -> NoReturn:
        raise ReleaseError(f"{self.name}: {path} is {shortened(value)}, not {expected}",
                           "correct the config, or download it again")


def not_finite(config: Table) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(keys and indices, text) of each number of a config that is not finite."""
    inside: list[tuple[tuple[str | int, ...], Any]] = [((), config)]
    for at, value in inside:  # it grows; lists may lie in lists deeper than Python calls
        if isinstance(value, float) and not isfinite(value):
            yield at, str(value)
        elif isinstance(value, Mapping):
            inside += [((*at, key), inner) for key, inner in value.items() if isinstance(inner, (Mapping, list, float))]
        elif isinstance(value, list) and len(at) < 2 * DEEPEST:
            inside += [((*at, key), inner) for key, inner in enumerate(value)
                       if isinstance(inner, (Mapping, list, float))]


def shortened(value: object) -> str:
    """A value for a message: one line of at most 60 characters."""
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    try:
        shown = repr(value)
    except ValueError:  # it holds a number of so many digits that Python refuses to write it
        return f"a {type(value).__name__}"
    return shown if len(shown) < 60 else shown[:57] + "..."


def printable(text: str) -> str:
    """Somebody else's text for a list: one line of at most 200 characters."""
    cut = text if len(text) <= 200 else text[:197] + "..."
    return cut if cut.isprintable() else ascii(cut)[1:-1]


def _model_types(tables: list[tuple[str, Table]]) -> list[str]:
    """Model types of the language model's tables, innermost first, as they are stated or as the outer one implies."""
    types: list[str] = []
    for _, table in reversed(tables):
        stated, outer = table.get("model_type"), types[0] if types else ""
        kind = stated if isinstance(stated, str) else class_defaults().inner.get(outer, "")
        types.insert(0, kind)
    return types


@cache
def _plain_keys() -> re.Pattern[str]:
    """Keys that need no attention."""
    plain = [pattern for group in vocabulary().config.known.values() for pattern in group]
    wild = [name for key in keys().keys for name in key.names if "*" in name]
    return re.compile("|".join(map(translate, [*plain, *wild])))


@cache
def _spellings() -> dict[str, list[str]]:
    return vocabulary().config.spellings()


def _refuse_deep(name: str, raw: Table) -> None:
    tables: list[Table] = [raw]
    for _ in range(DEEPEST):
        tables = [value for table in tables for value in table.values() if isinstance(value, Mapping)]
        if not tables:
            return
    raise ReleaseError(f"{name} has tables inside tables more than {DEEPEST} deep", "download it again; it is damaged")


def _leaves(table: Table, skip: Collection[str] = (), opaque: Callable[[str], object] | None = None,
            path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values. Tables named in `skip` are left out, those whose key is `opaque` are one leaf."""
    for key, value in table.items():
        if isinstance(value, Mapping) and key in skip:
            continue
        if isinstance(value, Mapping) and not (opaque and opaque(key)):
            yield from _leaves(value, skip, opaque, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
