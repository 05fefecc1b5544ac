"""The rule about values of the config that make no sense, or that nothing here knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import reduce
from math import isfinite
from operator import getitem
from typing import Any

from dayzero.data.keys import Table, keys, language_tables, rotates_nothing, stated
from dayzero.data.vocabulary import vocabulary
from dayzero.floats import dtype_named
from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case, rule

from .keys import shown
from .reads import relative

_BLOCKS = ("weight_block_size", "block_structure")
"""Keys of a quantisation table that state rows and columns of a block."""
Places = Iterator[tuple[str, Any]]
"""Path and value."""


@rule("config-value")
def config_value(case: Case) -> Iterator[Finding]:
    """A value of the config makes no sense, or is a word that is not known.

    ## What
    The base of the rotary frequencies and the epsilon of a norm are finite numbers above 0, and a quantisation block
    has two sizes above 0: anything else is an error. A kind of rotary scaling, an activation, a dtype or a kind of
    layer that is in no list here, nor understood otherwise, is a warning.

    ## Why
    Nothing checks these when the weights are loaded. A base or an epsilon that is no number turns every value into NaN;
    for a word that is not known, code stops, or silently takes another branch.

    ## Example
    Phi-3's config changed its rope_type from su to longrope one day, and a server that knew only the old word stopped
    (huggingface/text-generation-inference#2172). `Infinity` and `NaN` are no JSON, but Python writes and reads both.

    ## How to fix
    Compare config.json with the one that is published. For a new word: use a version of the engine that knows it.
    """
    raw = _restored(case)
    for path, value in (*_bases(raw), *_epsilons(raw)):
        if not all(map(_is_positive, _numbers(value))):
            yield _senseless(path, value, "a finite number above 0")
    for path, block in _blocks(case):
        if not (isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
            yield _senseless(path, block, "two sizes above 0")
    yield from _unknown(_scalings(raw), {*keys().rope.scalings, *keys().rope.no_scaling}, "a kind of rotary scaling")
    yield from _unknown(_activations(raw), {*keys().values.activations}, "an activation")
    yield from _unknown(_dtypes(raw), {"auto"}, "a floating dtype")
    yield from _unknown_layers(raw)


def _restored(case: Case) -> Table:
    """The config, with the numbers that are not finite where a stored release has null."""
    raw: Any = deepcopy(case.release.config) if case.model.not_finite else case.release.config
    for (*above, last), text in case.model.not_finite:
        reduce(getitem, above, raw)[last] = float(text)
    table: Table = raw
    return table


def _senseless(path: str, value: Any, wanted: str) -> Finding:
    key = relative(path)
    return Finding(rule="config-value", severity="error", subject=key, message=f"{key} is {shown(value)}, not {wanted}",
                   hint="compare config.json with the one that is published", facts={"value": shown(value)})


def _unknown(places: Places, known: set[str], what: str) -> Iterator[Finding]:
    for path, word in places:
        if not isinstance(word, str) or word.lower() not in known:
            key = relative(path)
            yield Finding(rule="config-value", severity="warning", subject=key,
                          message=f"{key} is {shown(word)}, which is not known here as {what}",
                          hint="correct a misspelling, or use a version of the engine that knows the word",
                          facts={"value": shown(word)})


def _numbers(value: Any) -> list[Any]:
    """The value, or those for layers or kinds of layers; null and 0 stand for layers that are not rotated there."""
    several = [*value.values()] if isinstance(value, Mapping) else value
    return [one for one in several if one not in (None, 0)] if isinstance(several, list) else [value]


def _is_positive(value: Any) -> bool:
    """Whether it is a number that a float holds, above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return isfinite(value) and value > 0
    except OverflowError:
        return False


def _bases(raw: Table) -> Places:
    """Stated bases of rotary frequencies, those for kinds of layers too."""
    words = keys().rope
    if rotates_nothing(raw):
        return
    special = [name for names in words.own_bases.values() for name in names]
    yield from ((path, value) for _, path, value in stated(raw, [*words.bases, *special]))
    for path, table in _rope_tables(raw):
        yield from ((f"{path}.{name}", table[name]) for name in words.bases if table.get(name) is not None)


def _rope_tables(raw: Table) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tables of rotary parameters, and those for kinds of layers inside of them."""
    for _, path, table in stated(raw, keys().rope.tables):
        if isinstance(table, Mapping):
            yield path, table
            yield from ((f"{path}.{key}", inner) for key, inner in table.items() if isinstance(inner, Mapping))


def _epsilons(raw: Table) -> Places:
    for path, table in language_tables(raw):
        for key, value in table.items():
            is_number = isinstance(value, (int, float, str)) and not isinstance(value, bool)
            if is_number and any(fnmatchcase(key, name) for name in keys().values.positive):
                yield path + key, value


def _blocks(case: Case) -> Places:
    table = case.model.quantization or {}
    for name in _BLOCKS:
        if table.get(name):
            yield f"quantization_config.{name}", table[name]


def _scalings(raw: Table) -> Places:
    for path, table in _rope_tables(raw):
        yield from ((f"{path}.{name}", table[name]) for name in keys().rope.kind_of_scaling
                    if table.get(name) is not None)


def _activations(raw: Table) -> Places:
    names = vocabulary().config.spellings()["activation"]
    yield from ((path, value) for _, path, value in stated(raw, names) if isinstance(value, str))


def _dtypes(raw: Table) -> Places:
    names = vocabulary().config.spellings()["dtype"]
    yield from ((path, value) for _, path, value in stated(raw, names)
                if isinstance(value, str) and dtype_named(value) is None)


def _unknown_layers(raw: Table) -> Iterator[Finding]:
    """Lists of kinds of layers with words that no kind here stands for; numbers have meanings of their own."""
    words = vocabulary().config
    known = {*words.layer_types, *words.feed_forward_types, *keys().values.layers}
    for _, path, value in stated(raw, [*words.patterns["layer_types"],
                                                       *words.patterns["feed_forward_types"]]):
        strange = {entry for entry in value if isinstance(entry, str)} - known if isinstance(value, list) else set()
        yield from _unknown(((path, word) for word in sorted(strange)), known, "a kind of layer")
