"""The twin's config and the other JSON files: numbers, lists of layers, names of layers and token ids changed in place,
every key kept in its order."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import towers, vocabulary
from dayzero.schema import ModelSpec

from .facts import TOWER, Facts, get, is_width
from .layers import Kept, index_base, is_layer_list, tower_lists

_LAYER = re.compile(r"(?<![^.:*\\])((?:layers|layer|h|blocks)\\?\.)(\d+)(?![^.*\\$)])")
_WORDS, _DIGITS = re.compile(r"[.:*\\]+"), 6


def token_ids(config: Mapping[str, Any]) -> dict[int, str]:
    """Every token id in a config -> the key that names it first."""
    found: dict[int, str] = {}

    def look(key: str, value: Any) -> Any:
        if _is_token(key):
            for one in value if isinstance(value, list) else [value]:
                if type(one) is int and one >= 0:
                    found.setdefault(one, key)
        return value

    _walk(copy.deepcopy(dict(config)), "", look)
    return found


def new_ids(ids: Mapping[int, str], vocab: int, kept: int, first: int) -> dict[int, int]:
    """Old id -> new id. Ids of the vocabulary follow the bytes; what lies behind the vocabulary still does."""
    inside = sorted(one for one in ids if one < vocab)
    behind = {one: kept + one - vocab for one in ids if one >= vocab}
    return {one: first + at for at, one in enumerate(inside)} | behind


def rewritten(config: Mapping[str, Any], facts: Facts, chosen: Mapping[str, int], kept: Kept, ids: Mapping[int, int],
              model: ModelSpec) -> dict[str, Any]:
    """The twin's config."""
    made = copy.deepcopy(dict(config))
    for name, value in chosen.items():
        for path in facts.keys.get(name, ()):
            put(made, path, value)
    for path in facts.keys.get("layers", ()):
        put(made, path, kept.count)
    for tower in facts.towers:
        if tower.table in kept.towers:
            _tower(get(made, tower.table), tower.depth, kept.towers[tower.table])
    tables = {tower.table for tower in facts.towers}
    old, new = facts.values, facts.complete(chosen)
    made = _walk(made, "", lambda key, value: value if _below(key, tables) else _layered(key, value, kept, model))
    made = _by_number(made, "", kept, tables)
    if "head_dim" in old:
        made = _walk(made, "", lambda key, value: _rotary(key, value, old["head_dim"], new["head_dim"]))
    result: dict[str, Any] = renamed(made, kept, ids)
    return result


def renamed(value: Any, kept: Kept, ids: Mapping[int, int]) -> Any:
    """A JSON value with the twin's token ids and numbers of layers in names of modules."""
    return _walk(copy.deepcopy(value), "", lambda key, one: _names(_tokens(key, one, ids), kept))


def _walk(value: Any, key: str, change: Callable[[str, Any], Any]) -> Any:
    """Apply `change(dotted key, value)` to every value that is no table."""
    if isinstance(value, dict):
        return {name: _walk(inner, f"{key}.{name}" if key else name, change) for name, inner in value.items()}
    return change(key, value)


def _below(key: str, tables: set[str]) -> bool:
    return any(key.startswith(f"{table}.") for table in tables)


def put(config: dict[str, Any], path: str, value: int) -> None:
    """Change the number at a dotted key that is there."""
    *outer, last = path.split(".")
    table = get(config, ".".join(outer)) if outer else config
    if isinstance(table, dict) and last in table:
        table[last] = value


def _is_token(key: str) -> bool:
    return any(fnmatchcase(key.rpartition(".")[2], word) for word in twin_facts().token_ids)


def _tokens(key: str, value: Any, ids: Mapping[int, int]) -> Any:
    if not _is_token(key):
        return value
    if isinstance(value, list):
        return [ids.get(one, one) if type(one) is int else one for one in value]
    return ids.get(value, value) if type(value) is int else value


def _names(value: Any, kept: Kept) -> Any:
    """Names of modules without the layers that are gone, the others with their new numbers."""
    if isinstance(value, str):
        new = _name(value, kept)
        return value if new is None else new
    if isinstance(value, list) and any(isinstance(one, str) for one in value):
        return [new for one in value if (new := _name(one, kept) if isinstance(one, str) else one) is not None]
    return value


def _name(text: str, kept: Kept) -> str | None:
    match = _LAYER.search(text)
    if match is None:
        return text
    words, old, scopes = set(_WORDS.split(text)), int(match[2]), vocabulary().scopes
    if words & {*scopes["vision"], *scopes["audio"]}:
        layers = next(iter(kept.towers.values()), None)
        new = old if layers is None else layers.index(old) if old in layers else None
    else:
        new = old if words & {*scopes["mtp"]} else kept.new(old)
    return None if new is None else text[:match.start(2)] + str(new) + text[match.end(2):]


def _layered(key: str, value: Any, kept: Kept, model: ModelSpec) -> Any:
    """Lists with an entry for each layer, lists of layers, and distances between layers."""
    leaf = key.rpartition(".")[2]
    if leaf in twin_facts().strides and type(value) is int:
        return max(1, min(value, kept.count // 2))
    if isinstance(value, str) and len(value) == kept.total and leaf in _pattern_keys():
        return "".join(value[layer] for layer in kept.layers)
    if not isinstance(value, list) or not value:
        return value
    for_each = len(value) in (kept.total, kept.total + model.mtp_layers) and not isinstance(value[0], (dict, list))
    if for_each and kept.total > 1 and not _names_all(value, kept.total):
        return [value[layer] for layer in kept.layers] + value[kept.total:]
    if is_layer_list(leaf) and all(type(one) is int for one in value):
        base = index_base(model)
        return [new + base for one in value if one >= base and (new := kept.new(one - base)) is not None]
    return value


def _by_number(value: Any, key: str, kept: Kept, towers: set[str]) -> Any:
    """Tables whose keys are numbers of layers, with a table for each: those of the layers that are kept."""
    if not isinstance(value, dict) or key in towers:
        return value
    numbered = all(name.isdecimal() and len(name) <= _DIGITS and int(name) < kept.total and isinstance(inner, dict)
                   for name, inner in value.items())
    if numbered:
        new = {name: kept.new(int(name)) for name in value}
        return {f"{place:0{len(name)}d}": value[name] for name, place in new.items() if place is not None}
    return {name: _by_number(inner, f"{key}.{name}" if key else name, kept, towers) for name, inner in value.items()}


def without_predictions(value: Any) -> Any:
    """A JSON value whose lists name no modules of multi-token prediction."""
    words = {*vocabulary().scopes["mtp"]}
    return _walk(copy.deepcopy(value), "", lambda key, one: one if not isinstance(one, list) else [
        entry for entry in one if not (isinstance(entry, str) and words.intersection(_WORDS.split(entry)))])


def _names_all(value: list[Any], total: int) -> bool:
    """Whether a list names every layer, instead of having an entry for each."""
    return value in (list(range(total)), list(range(1, total + 1)))


def _pattern_keys() -> set[str]:
    return {word.rpartition(".")[2] for words in vocabulary().config.patterns.values() for word in words}


def _rotary(key: str, value: Any, old: int, new: int) -> Any:
    """Lists with a number for each rotated pair, and lists of how many pairs are of a kind, for narrower heads."""
    if old == new or not isinstance(value, list) or not value or not all(type(one) in (int, float) for one in value):
        return value
    if not any(fnmatchcase(key.rpartition(".")[2], word) for word in twin_facts().rotary_lists):
        return value
    if all(type(one) is int for one in value) and sum(value) * 2 <= old:
        return _parts(value, sum(value) * new // old)
    count = len(value) * new // old
    return [value[at * len(value) // count] for at in range(count)]


def _parts(value: list[int], total: int) -> list[int]:
    """Whole numbers in the same proportion that add up to another total."""
    made = [part * total // sum(value) for part in value]
    for at in range(total - sum(made)):
        made[at % len(made)] += 1
    return made


def _tower(table: dict[str, Any], depth: str, kept: tuple[int, ...]) -> None:
    """Layers of a tower, and lists of them."""
    lists = tower_lists(table, int(get(table, depth)))
    put(table, depth, len(kept))
    for key, value in lists:
        table[key] = [kept.index(one) for one in value if one in kept]


def spelled_otherwise(unstated: Mapping[str, int], facts: Facts, chosen: Mapping[str, int],
                      kept: Kept) -> dict[str, int]:
    """New values of defaults that repeat a tower's number under another key. `unstated`: what a library takes for keys
    that the config does not state."""
    added: dict[str, int] = {}
    for key, value in unstated.items():
        leaf = key.rpartition(".")[2]
        for tower in facts.towers:
            begin = f"{TOWER}{tower.table}."
            if key.startswith(f"{tower.table}."):
                if tower.table in kept.towers and leaf in towers().facts["depth"] and value == kept.depths[tower.table]:
                    added[key] = len(kept.towers[tower.table])
                if leaf in towers().facts["heads"] and tower.heads and value == facts.values[begin + tower.heads]:
                    added[key] = chosen[begin + tower.heads]
            elif "." in key:
                continue
            widths = {facts.values[begin + width]: chosen[begin + width] for width in tower.widths}
            if is_width(leaf) and value in widths:
                added[key] = widths[value]
    return added


def changed_numbers(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(dotted key, original, twin) of the integers that differ, without token ids."""
    found: list[tuple[str, int, int]] = []

    def look(key: str, value: Any) -> Any:
        other = get(new, key)
        if type(value) is int and type(other) is int and value != other and not _is_token(key):
            found.append((key, value, other))
        return value

    _walk(copy.deepcopy(dict(old)), "", look)
    return found
