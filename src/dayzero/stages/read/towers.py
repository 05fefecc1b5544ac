"""The tensors that a standard vision tower would have, for a release of which only the config is there."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from dayzero.data.vocabulary import towers, vocabulary
from dayzero.schema.model import Tower

from .blocks import Architecture, Builder
from .config import LIMIT, LIMITS
from .expression import evaluate


def stated_towers(raw: Mapping[str, Any]) -> tuple[Tower, ...]:
    """Sizes of the towers that a config describes, as it states them."""
    found = []
    for key in towers().tables:
        table = raw.get(key)
        if isinstance(table, Mapping):
            heads, heads_key = _stated(table, "heads")
            width, width_key = _stated(table, "inner")
            found.append(Tower(heads=heads, heads_key=f"{key}.{heads_key}",
                               width=width, width_key=f"{key}.{width_key}"))  # fmt: skip
    return tuple(found)


def _stated(table: Mapping[str, Any], fact: str) -> tuple[int, str]:
    """(size, key) of the first spelling that is a size; (0, "") if there is none."""
    return next(((size, key) for key in towers().facts[fact] if (size := _size(table.get(key), False))), (0, ""))


def add_towers(builder: Builder, architecture: Architecture) -> list[str]:
    """Adds the tensors of the towers that the config describes; the keys of those that it does not describe enough."""
    raw, left_out = architecture.config.raw, []
    for key in vocabulary().config.towers:
        table = raw.get(key)
        if not isinstance(table, Mapping):
            continue
        facts = _facts(key, table, architecture.facts["hidden_size"]) if key in towers().tables else None
        if facts is None:
            left_out.append(key)
        else:
            _add(builder, facts, architecture.dtype)
    return left_out


def _facts(key: str, table: Mapping[str, Any], hidden_size: int) -> dict[str, int] | None:
    """Sizes of the tower; None when one that it cannot be without is not stated."""
    words = towers()
    facts = {"out": hidden_size, **words.defaults}
    for fact, spellings in words.facts.items():
        for spelling in spellings:
            sides = [_size(table.get(part), fact in words.listed) for part in spelling.split(" * ")]
            if all(sides):
                facts[fact] = prod(filter(None, sides))
                break
    if any(fnmatchcase(str(table.get("model_type")), pattern) for pattern in words.unlike):
        return None
    if any(not facts.get(need) for need in words.needs) or facts["depth"] > LIMITS["layers"]:
        return None
    gated = table.get("hidden_act") in words.gated_words or key in words.gated_tables
    return {**facts, "gated": int(gated), "plain": int(not gated)}


def _size(value: object, listed: bool) -> int | None:
    """A size that is an integer or a list of equal sides; of what is `listed`, how many there are."""
    if isinstance(value, list):
        value = len(value) if listed else value[0] if value and value.count(value[0]) == len(value) else None
    return value if type(value) is int and 0 < value < LIMIT else None


def _add(builder: Builder, facts: dict[str, int], dtype: str) -> None:
    for row in towers().tensors:
        if row.when and not facts.get(row.when):
            continue
        shape = [evaluate(size, facts) for size in row.shape]
        name = row.name.replace("{S}", "{L}")
        layers = range(facts["stacked"] if "{S}" in row.name else facts["depth"]) if "{L}" in name else ()
        builder.add(f"{name}.weight", shape, dtype, layers)
        if row.bias and facts.get(row.bias):
            builder.add(f"{name}.bias", shape[:1], dtype, layers)
