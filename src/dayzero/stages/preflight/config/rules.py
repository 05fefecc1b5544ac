"""Rules about lists in the config that speak of layers."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.keys import keys, language_tables, lookup, stated
from dayzero.data.vocabulary import vocabulary
from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

from .reads import relative


@rule("config-list-length")
def config_list_length(case: Case) -> Iterator[Finding]:
    """A list about layers does not fit the number of layers.

    ## What
    A list with one entry for each layer (kinds of attention or of feed-forward block, flags, compression) has another
    number of entries than there are layers, with or without those for multi-token prediction; or a list of layer
    numbers names layers that do not exist, or the lists together name only some.

    ## Why
    Layers at the end get no kind, or the wrong one: code that indexes the list stops, code that pairs drops layers.

    ## Example
    47 entries of layer_types for 48 layers. The layer lists of Kimi-Linear count from 1: read from 0, one layer is
    missing and one too many (alibaba/rtp-llm#1283).

    ## How to fix
    Correct the list or the number of layers in config.json.
    """
    allowed, layers = _allowed(case), len(case.model.layers)
    for key, values in _lists(case):
        if len(values) not in allowed:
            yield _wrong(key, len(values), allowed, f"{key} has {len(values)} entries for {layers} layers")
    named = _numbered(case)
    for _, key, numbers, known in named:
        base = int(0 not in numbers) if known is None else known
        highest = max(numbers) - base + 1
        if highest > allowed[-1]:
            yield _wrong(key, highest, allowed,
                         f"{key} names layer {max(numbers)}, counted from {base}; there are {layers} layers")
    yield from _uncovered(named, allowed)


def _uncovered(named: list[tuple[str, str, list[int], int | None]], allowed: list[int]) -> Iterator[Finding]:
    """Lists of layer numbers for each kind of attention that leave layers out, or name some twice."""
    lists = [(key, numbers) for fact, key, numbers, _ in named if fact in ("full_layers", "linear_layers")]
    every = [number for _, numbers in lists for number in numbers]
    if len(lists) < 2 or (len(set(every)) in allowed and len(every) == len(set(every))):
        return
    key = " + ".join(key for key, _ in lists)
    wrong = "name a layer twice" if len(every) > len(set(every)) else f"name {len(set(every))} layers"
    yield _wrong(key, len(every), allowed, f"{key} {wrong}; there are {allowed[0]}")


def _wrong(key: str, length: int, allowed: list[int], message: str) -> Finding:
    return Finding(rule="config-list-length", severity="error", subject=key, message=message,
                   hint="correct the list or the number of layers in config.json",
                   facts={"length": length, "allowed": allowed})


@rule("config-index-base", "info")
def config_index_base(case: Case) -> Iterator[Finding]:
    """A list of layer numbers, and whether it counts from 0 or from 1.

    ## What
    The config names layers by number. The base is the one for which the list names the layers that the files, or the
    other lists, show to be of that kind.

    ## Why
    Both conventions are in use, and a list read with the wrong one mostly still looks like a list of layers: each kind
    of layer is one off.

    ## Example
    The lists of Kimi-Linear and Kimi-K3 count from 1, and loaders differ in how they take them
    (alibaba/rtp-llm#1283).

    ## How to fix
    Nothing is wrong with the release. Look whether the engine counts from the same base.
    """
    for _, key, numbers, base in _numbered(case):
        if base is not None:
            yield Finding(rule="config-index-base", severity="info", subject=key,
                          message=f"{key} counts layers from {base}", hint="look whether the engine does so too",
                          facts={"base": base, "length": len(numbers)})


def _allowed(case: Case) -> list[int]:
    """Lengths that are right: the layers, also with those for multi-token prediction, in the files or as stated."""
    spellings = vocabulary().config.counts["mtp_layers"]
    more = {value for _, _, value in stated(case.release.config, spellings) if type(value) is int and value > 0}
    layers = len(case.model.layers)
    return sorted({layers, layers + case.model.mtp_layers, *(layers + one for one in more)})


def _lists(case: Case) -> Iterator[tuple[str, list[Any] | str]]:
    """Key and value of lists, or strings of letters, with one entry for each layer."""
    words, seen = vocabulary().config, set()
    whole = {*keys().per_layer.lists, *words.patterns["layer_types"], *words.patterns["feed_forward_types"]}
    for path, table in language_tables(case.release.config):
        for key, value in _entries(table):
            full = relative(path + key)
            is_list = isinstance(value, list) and value
            is_text = isinstance(value, str) and key in words.patterns["layer_types"] and len(value) > 1
            if (is_list or is_text) and full not in seen and any(fnmatchcase(key, name) for name in whole):
                seen.add(full)
                yield full, value


def _entries(table: Any) -> Iterator[tuple[str, Any]]:
    """Keys of a table, and dotted ones that are listed for tables in it."""
    dotted = [name for name in keys().per_layer.lists if "." in name]
    yield from table.items()
    yield from ((name, value) for name in dotted if (value := lookup(table, name)) is not None)


def _numbered(case: Case) -> list[tuple[str, str, list[int], int | None]]:
    """Lists of layer numbers: fact, key, numbers, and the base (None: nothing tells)."""
    found = []
    for fact, kinds in keys().per_layer.numbers.items():
        for _, path, value in list(stated(case.release.config, vocabulary().config.patterns[fact]))[:1]:
            numbers = _as_numbers(value)
            if numbers:
                found.append((fact, relative(path), numbers, _base(case, numbers, kinds)))
    return found


def _as_numbers(value: Any) -> list[int]:
    if isinstance(value, str):
        value = [int(item) if item.strip().isdigit() else None for item in value.split(",")]
    whole = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return value if whole else []


def _base(case: Case, numbers: list[int], kinds: list[str]) -> int | None:
    """The base for which the list names the layers that are of its kind."""
    model = case.model
    if "default" in model.sources.get("index_base", "") and not {"dense", "experts"} & {*kinds}:
        return None
    layers = {index for index, layer in enumerate(model.layers) if model.attentions[layer.attention].kind in kinds
              or model.feed_forwards[layer.feed_forward].kind in kinds}
    right = [len({number - base for number in numbers} & layers) for base in (0, 1)]
    return None if right[0] == right[1] else int(right[1] > right[0])
