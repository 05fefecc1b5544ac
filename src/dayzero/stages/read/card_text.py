"""A card as TOML: what a person would write, so that it can be read, changed and given back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import tomli_w

from .card import Card
from .card_nulls import without_nulls

WIDTH = 120
"""Columns of a line."""


def card_text(card: Card) -> str:
    """The card as TOML, which `read_card` reads back as the same."""
    config, nulls = without_nulls(card.config)
    about = {**msgspec.to_builtins(card.card), **({"nulls": nulls} if nulls else {})}
    parts = [_table("card", about), _table("config", config)]
    if not card.blocks:  # absent would mean the standard ones
        parts.insert(0, ["blocks = []", ""])
    parts += [_table("blocks", msgspec.to_builtins(block), "[[{}]]") for block in card.blocks]
    parts += [_table("tensors", msgspec.to_builtins(row), "[[{}]]") for row in card.tensors]
    return "\n".join(chain.from_iterable(parts)).strip() + "\n"


def _table(name: str, table: Mapping[str, Any], header: str = "[{}]") -> list[str]:
    """Lines of a table; tables inside that do not fit on a line come after it."""
    lines, inner = [header.format(name)], []
    for key, value in table.items():
        line = f"{_key(key)} = {_value(value)}"
        if isinstance(value, Mapping) and value and header == "[{}]" and len(line) > WIDTH:
            inner.append((key, value))
        elif len(line) > WIDTH and isinstance(value, list):
            lines += [f"{_key(key)} = [", *_wrapped(value), "]"]
        else:
            lines.append(line)
    return [*lines, "", *chain.from_iterable(_table(f"{name}.{_key(key)}", value) for key, value in inner)]


def _wrapped(values: list[Any]) -> Iterator[str]:
    """Entries of a list on as many lines as they need."""
    line = " "
    for value in map(_value, values):
        if line.strip() and len(line) + len(value) + 2 > WIDTH:
            yield line
            line = " "
        line += f" {value},"
    yield line


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(own)}" for key, own in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
