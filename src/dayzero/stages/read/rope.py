"""Rotary positions as the config states them: flat keys, one table, or a table for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dayzero.data.keys import Table, keys, rotates_nothing, stated
from dayzero.data.vocabulary import vocabulary
from dayzero.schema import Rope

from .config import Config

NOT_ROTATED = ("linear", "none")
"""Kinds of attention without rotary positions."""
LIMIT = 1e30
"""No base is larger; a config that says so is damaged."""
LIKE_FULL = ("latent", "sparse")
"""Kinds of attention that configs call full in tables for kinds of layer."""


def ropes(config: Config, kinds: Iterable[str]) -> dict[str, Rope]:
    """The rotary positions of each of the kinds of attention, and of a compressed cache. A kind's own table counts,
    then its own key, then what is stated for all."""
    raw: Table = config.raw
    if rotates_nothing(raw):
        return {}
    path, table, by_kind = _table(raw)
    found: dict[str, Rope] = {}
    own_keys = {kind: key for kind, names in keys().rope.own_bases.items() if (key := _first(raw, names))}
    standard = set(vocabulary().config.layer_types.values())
    for kind in dict.fromkeys([*kinds, *({*own_keys, *by_kind} - standard)]):
        own = by_kind.get(kind) or (by_kind.get("full") if kind.partition("/")[0] in LIKE_FULL else None)
        if kind in NOT_ROTATED:
            continue
        if own is None and kind in own_keys:
            base_key, base = own_keys[kind]
            rope = Rope(base=base, base_key=base_key, share=_number(_value(raw, "partial_rotary_factor")))
        else:
            rope = _rope(raw, *(own or (path, table)))
        if rope.base is not None or rope.table:
            found[kind] = rope
            config.note(f"rope.{kind}", f"{config.name}: {rope.base_key or rope.table}")
    return found


def _table(raw: Table) -> tuple[str, Table, dict[str, tuple[str, Table]]]:
    """The table for all kinds of layer with its path, and those of single kinds."""
    kinds = vocabulary().config.layer_types
    for name, path, value in stated(raw, keys().rope.tables):
        if not isinstance(value, Mapping) or not value:
            continue
        inner = {key: part for key, part in value.items() if isinstance(part, Mapping)}
        if inner and len(inner) == sum(part is not None for part in value.values()):
            return "", {}, {kinds.get(key, key): (f"{path}.{key}", part) for key, part in inner.items()}
        named_kind = {"rope_type": name} if name in keys().rope.named_scaling else {}
        return path, {**named_kind, **value}, {}
    return "", {}, {}


def _rope(raw: Table, path: str, table: Table) -> Rope:
    words = keys().rope
    key = next(((f"{path}.{name}", value) for name in words.bases
                if (value := _number(table.get(name))) is not None), None) or _first(raw, words.bases)
    kind = next((str(table[name]) for name in words.kind_of_scaling if table.get(name) is not None), "default")
    scaled = kind not in words.no_scaling
    positions = table.get("original_max_position_embeddings") or _value(raw, "original_max_position_embeddings")
    share = table.get("partial_rotary_factor", _value(raw, "partial_rotary_factor"))
    return Rope(
        base=key[1] if key else None, base_key=key[0] if key else "", scaling=kind if scaled else "default",
        factor=_number(table.get("factor")) if scaled else None,
        original_positions=positions if scaled and type(positions) is int else None,
        table=path if scaled else "", share=_number(share),
    )


def _first(raw: Table, names: list[str]) -> tuple[str, float] | None:
    return next(((path, number) for _, path, value in stated(raw, names)
                 if (number := _number(value)) is not None), None)


def _value(raw: Table, name: str) -> Any:
    return next((value for _, _, value in stated(raw, [name])), None)


def _number(value: Any) -> float | None:
    """A positive number that can be a base or a factor; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < LIMIT else None
