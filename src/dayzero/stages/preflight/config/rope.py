"""Rules about rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dayzero.data.keys import keys, rotates_nothing, stated
from dayzero.schema import Finding, Rope
from dayzero.stages.preflight.code.shipped import Shipped
from dayzero.stages.preflight.rule import Case, rule

from .reads import ANY, Reads, relative
from .syntax import class_defaults

READERS = ("rotary", "attention")
"""Parts that may read what is stated about positions."""
SHORTEST = 2
"""Tokens at which a wrong rotation shows: one alone is not rotated."""


@rule("rope-layout")
def rope_layout(case: Case) -> Iterator[Finding]:
    """The engine pairs the values of a head in another way than the model for rotation.

    ## What
    A rotary position turns pairs of values: neighbours (interleaved), or one from each half of the head (half split).
    The config says which, separately for attention and for the indexer of sparse attention; the engine has the other.

    ## Why
    The weights were trained for one of them. Everything loads and runs, shapes agree, and the output is wrong: at once
    for attention; for an indexer only beyond as many tokens as it chooses, because below that it chooses all.

    ## Example
    GLM-5.1 and 5.2 rotate neighbours in the indexer too; its key indexer_rope_interleave went unread in the reference
    code and in several engines (huggingface/transformers#46842, ikawrakow/ik_llama.cpp#2099, ml-explore/mlx-lm#1453).

    ## How to fix
    Use a version of the engine that has the stated layout, and test it with a prompt of at least `min_test_tokens`.
    """
    for part, engine in (case.target.engine.facts.rope_layout or {}).items():
        said = _stated_layout(case, part)
        if said is None or engine not in ("interleaved", "half_split") or said[1] == engine:
            continue
        key, model, where = said
        least = _least_tokens(case, part)
        longer = f"; prompts below {least} tokens do not show it" if least and least > SHORTEST else ""
        yield Finding(
            rule="rope-layout", severity="error", subject=key,
            message=f"{part}: the model rotates {_WORDS[model]} ({where}), the engine {_WORDS[engine]}{longer}",
            hint="use a version of the engine that has the model's layout" + (f"; test with {least} tokens or more"
                                                                              if least else ""),
            facts={"part": part, "model": model, "engine": engine, **({"min_test_tokens": least} if least else {})})


_WORDS = {"interleaved": "neighbours", "half_split": "the halves of a head"}


def _stated_layout(case: Case, part: str) -> tuple[str, str, str] | None:
    """Key, layout and where it is said: in the config, or as a default of the configuration class that is shipped."""
    words, raw = keys().rope, case.release.config
    if part != "indexer" and not case.model.ropes:
        return None
    for table, when_true, when_false in ((words.layouts, "interleaved", "half_split"),
                               (words.half_layouts, "half_split", "interleaved")):
        names = table.get(part, [])
        for _, path, value in stated(raw, names):
            if isinstance(value, bool):
                return relative(path), when_true if value else when_false, f"{path} = {str(value).lower()}"
        defaults = class_defaults(Shipped(case.release).sources.values())
        for name in names:
            if isinstance(defaults.get(name), bool):
                layout = when_true if defaults[name] else when_false
                return name, layout, f"{name} = {str(defaults[name]).lower()} by default"
    return None


def _least_tokens(case: Case, part: str) -> int | None:
    """Length of the shortest prompt in which the layout matters: for an indexer one token more than it chooses."""
    if part != "indexer":
        return SHORTEST
    values = {name: value for name, _, value in stated(case.release.config, [
        "index_topk", "sparse_attention_config.sparse_topk_blocks", "sparse_attention_config.sparse_block_size"])
        if type(value) is int}
    chosen = values.pop("index_topk", None)
    if chosen is None and len(values) == 2:
        blocks, size = values.values()
        chosen = blocks * size
    return None if chosen is None else chosen + 1


@rule("rope-base")
def rope_base(case: Case) -> Iterator[Finding]:
    """The engine would rotate with another base than the config states.

    ## What
    The engine does not read the key or the table in which this config states the base, and takes its own default, or a
    base that is stated for other layers.

    ## Why
    All positions are wrong. Short prompts often still look right.

    ## Example
    GLM-5.1 and 5.2 state rope_theta = 8000000 inside rope_parameters; a reader of the flat key falls back to 10000
    (the same move broke deepspeedai/DeepSpeed#8341).

    ## How to fix
    Use a version of the engine that reads rope_parameters, or state the flat key as well.
    """
    reads = Reads(case.target.engine.facts)
    for key, kinds, rope in _unread_bases(case, reads):
        used = _would_use(case, reads, rope)
        if used is None or used == rope.base:
            continue
        yield Finding(
            rule="rope-base", severity="error", subject=_subject(key),
            message=f"{key} = {rope.base:.15g} ({', '.join(kinds)} layers) is not read; {used:.15g} would be used",
            hint="use a version of the engine that reads this key, or state the base where the engine looks for it",
            facts={"correct": _number(rope.base), "would_use": used, "key": key, "layers": list(kinds)})
    yield from _other_default(case, reads)


def _other_default(case: Case, reads: Reads) -> Iterator[Finding]:
    """The config states no base at all, and the shipped configuration class and the engine have different defaults."""
    raw, bases = case.release.config, keys().rope.bases
    assumed = next(((name, reads.defaults[name]) for name in bases if name in reads.defaults), None)
    if assumed is None or rotates_nothing(raw) or any(rope.base for rope in case.model.ropes.values()):
        return
    defaults = class_defaults(Shipped(case.release).sources.values())
    name, used = assumed
    correct = next((defaults[base] for base in bases if _is_base(defaults.get(base))), None)
    if correct is not None and _is_base(used) and correct != used:
        yield Finding(
            rule="rope-base", severity="error", subject=name,
            message=f"config.json states no base; the release's class takes {correct:.15g}, the engine {used:.15g}",
            hint=f"state {name} in config.json", facts={"correct": _number(correct), "would_use": _number(used)})


def unread_tables(case: Case, reads: Reads) -> Iterator[tuple[str, Any]]:
    """Keys or tables about rotary positions that are not read, unless the engine assumes the base; with values."""
    found: dict[str, Any] = {}
    for key, _, rope in _unread_bases(case, reads):
        if _assumed(reads, rope) != rope.base:
            table, _, inner = key.partition(".")
            found[table] = f"base {_number(rope.base)}" if inner else _number(rope.base)
    for rope in case.model.ropes.values():
        table = relative(rope.table)
        if table and reads.checked("rotary") and not _reads(case, reads, table):
            found[table.split(".")[0]] = f"{rope.scaling}" + (f", factor {rope.factor:g}" if rope.factor else "")
    yield from found.items()


def _unread_bases(case: Case, reads: Reads) -> Iterator[tuple[str, tuple[str, ...], Rope]]:
    """Stated bases that are not read: key, kinds of layer, rope."""
    if not _about_positions(reads):
        return
    kinds: dict[str, list[str]] = {}
    for kind, rope in case.model.ropes.items():
        kinds.setdefault(rope.base_key, []).append(kind)
    for key, of in kinds.items():
        if key and not _reads(case, reads, relative(key)):
            yield relative(key), tuple(of), case.model.ropes[of[0]]


def _about_positions(reads: Reads) -> bool:
    """Whether it is known what the engine reads about positions."""
    words = keys().rope
    about = {*words.bases, *words.tables, *(name for names in words.own_bases.values() for name in names)}
    listed = {name.split(".")[0] for role in (*READERS, ANY) for name in reads.by_role.get(role, ())}
    return "rotary" in reads.by_role or reads.complete or bool(about & listed)


def _reads(case: Case, reads: Reads, key: str) -> bool:
    """Whether a key is read, or, with a transformers that turns all spellings into one table, that table."""
    version = (case.target.engine.facts.transformers or "").split(".")[0]
    standard = keys().rope.tables[0]
    return reads.reads(READERS, key) or (version.isdigit() and int(version) >= 5 and reads.reads(READERS, standard))


def _would_use(case: Case, reads: Reads, rope: Rope) -> float | None:
    """The base that an engine takes which does not read this one; None: not known."""
    read = [value for name, path, value in stated(case.release.config, keys().rope.bases)
            if relative(path) != relative(rope.base_key) and _reads(case, reads, name)]
    own = _assumed(reads, rope)
    used = own if own is not None else next(iter(read), None)
    return _number(used) if _is_base(used) else None


def _assumed(reads: Reads, rope: Rope) -> float | None:
    """What the engine takes where the key of this base is absent."""
    leaf = rope.base_key.rpartition(".")[2]
    special = {name for names in keys().rope.own_bases.values() for name in names}
    names = [leaf] if leaf in special else [leaf, *keys().rope.bases]
    return next((reads.defaults[name] for name in (relative(rope.base_key), *names)
                 if _is_base(reads.defaults.get(name))), None)


def _subject(key: str) -> str:
    """The key's own name; with its table where that is for one kind of layer."""
    return key if key.count(".") > 1 else key.rpartition(".")[2]


def _is_base(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < 1e30


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1 else value
