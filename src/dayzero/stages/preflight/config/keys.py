"""Rules about the keys of the config: which the engine leaves unread, and which are spelled unusually."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dayzero.data.keys import keys, language_tables, stated
from dayzero.data.vocabulary import vocabulary
from dayzero.schema import Finding
from dayzero.stages.preflight.code.shipped import Shipped
from dayzero.stages.preflight.rule import Case, rule

from .reads import ANY, Reads, arithmetic, relative, unread
from .rope import unread_tables
from .syntax import SIZES, uses

SHOWN = 40
"""Longest value in a message."""


@rule("config-unread")
def config_unread(case: Case) -> Iterator[Finding]:
    """A config key that changes the arithmetic is not read where the engine would need it.

    ## What
    config_reads of the target's [engine], or of its profile, lists the keys that the engine reads in each part of the
    model. A key of this config that changes what the part computes, at a value that changes something, is not in it.
    Keys that only say what the weights show as well, or that classes for one architecture have built in, are left out.
    With --declared also, as information: such a key that nothing of the installed library read while it built the model
    and ran it; it has the value built in, or leaves it out.

    ## Why
    Nothing fails: the part computes with what the engine assumes instead. The output is fluent and worse.

    ## Example
    DeepSeek-V4 cuts its gated activation at swiglu_limit = 10. One port did it in the shared expert and in none of the
    routed ones (vllm-project/vllm-ascend#14398, #11184); on quantised paths MiniMax-M3 lost swiglu_alpha and
    swiglu_beta (vllm-project/vllm#46845, #49473). The library's class for GLM-5.2 never reads indexer_rope_interleave
    and rotates halves in the indexer, where the model was trained with neighbours (huggingface/transformers#46842).

    ## How to fix
    Use a version of the engine that reads the key there. Where the engine has the value built in, say so in
    config_defaults of the target.
    """
    yield from _unconsumed(case)
    reads = Reads(case.target.engine.facts)
    if not reads.by_role:
        return
    yield from _unknown_roles(reads)
    built_in = _built_in(case)
    lost = [(fact.names[0], fact.value, role, fact.key.does) for fact, role in unread(case.release, reads)
            if not built_in & {*fact.key.names}]
    lost += [(key, value, ANY if reads.complete else "rotary", "rotary positions")
             for key, value in unread_tables(case, reads)]
    dead = _unused_by_release(case) if lost else frozenset[str]()
    for key, value, role, does in lost:
        if key.rpartition(".")[2] in dead:
            continue
        where = "anywhere" if role == ANY else f"in {role}"
        assumed = {"would_use": reads.defaults[key]} if key in reads.defaults else {}
        instead = f"; it assumes {shown(assumed['would_use'])}" if assumed else ""
        yield Finding(rule="config-unread", severity="error", subject=key,
                      message=f"{key} = {shown(value)} ({does}) is not read {where}{instead}",
                      hint="use a version of the engine that reads it there; if the value is built in, state it in "
                           "config_defaults",
                      facts={"role": role, "value": _fact(value), **assumed})


def _unconsumed(case: Case) -> Iterator[Finding]:
    """Keys that the library read nowhere, if it was watched. Its class may have their values built in."""
    consumed = case.consumption
    if consumed is None or consumed.impossible or consumed.incomplete:
        return
    for fact in arithmetic(case.release):
        if fact.roles and not fact.key.fixed and not consumed.places(*fact.names):
            key, value = fact.names[0], fact.value
            yield Finding(rule="config-unread", severity="info", subject=key,
                          message=f"{key} = {shown(value)} ({fact.key.does}) is read nowhere by {consumed.source}: it "
                                  "has that built in, or leaves it out",
                          hint="compare with the code that the model was trained with",
                          facts={"role": fact.roles[0], "value": _fact(value), "library": consumed.source})


def _built_in(case: Case) -> set[str]:
    """Keys of rotary layouts that the target says of the engine by itself; rope-layout compares these."""
    parts = case.target.engine.facts.rope_layout or {}
    words = keys().rope
    return {name for part in parts for names in (words.layouts, words.half_layouts) for name in names.get(part, ())}


def _unknown_roles(reads: Reads) -> Iterator[Finding]:
    known = {ANY, *keys().modules}
    for role in sorted(reads.by_role.keys() - known):
        yield Finding(rule="config-unread", severity="info", subject=role,
                      message=f"config_reads names {role}, which is no part of a model that is known here",
                      hint=f"known: {', '.join(sorted(known))}", facts={"role": role})


def _unused_by_release(case: Case) -> frozenset[str]:
    """Keys of the config that the release's own model code, where it is shipped, does not read either."""
    read = {use.key for use in uses(Shipped(case.release).sources.values())}
    if not SIZES & read:
        return frozenset()
    stated = {key for _, table in language_tables(case.release.config) for key in table}
    return frozenset(stated - read)


@rule("config-alias", "info")
def config_alias(case: Case) -> Iterator[Finding]:
    """The config spells a known fact in an unusual way.

    ## What
    A fact that most releases state under another key. It is understood here.

    ## Why
    Code that asks for the usual key finds nothing and takes a default, mostly without a word.

    ## Example
    Kimi-Linear and Kimi-K3 state num_experts_per_token; most code asks for num_experts_per_tok.

    ## How to fix
    Nothing is wrong with the release. Look whether the engine reads this spelling.
    """
    seen: set[str] = set()
    for usual, names in _spellings():
        said = list(stated(case.release.config, names))
        usually = [value for name, _, value in said if name in usual]
        for name, path, value in said[:1] if not usually else [one for one in said if one[2] != usually[0]]:
            if name in usual or name in seen or value is False:
                continue
            seen.add(name)
            yield Finding(rule="config-alias", severity="info", subject=relative(path),
                          message=f"{relative(path)} = {shown(value)} is what most releases call {usual[0]}"
                                  + (f", which is {shown(usually[0])} here" if usually else ""),
                          hint="look whether the engine reads this spelling",
                          facts={"value": _fact(value), "usual": usual[0]})


def _spellings() -> Iterator[tuple[list[str], list[str]]]:
    """Usual spellings of each fact, and all that mean it and nothing else."""
    words, table = vocabulary().config, keys()
    facts = {**words.sizes, **words.counts, **words.flags}
    several = [name for names in facts.values() for name in names]
    for fact, names in facts.items():
        usual = table.usual.get(fact, names[:1])
        yield usual, [name for name in names if name in usual or several.count(name) == 1]
    for key in table.keys:
        if key.roles[0] == "router" and not key.fixed and len(key.names) > 1:
            yield key.names[:1], key.names


def _fact(value: Any) -> Any:
    """A value as it is, if it is one that JSON has; a longer one in one short line."""
    huge = isinstance(value, int) and abs(value) >= 1 << 63
    return shown(value) if huge or isinstance(value, (list, dict)) else value


def shown(value: Any) -> str:
    """A value in one short line."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
