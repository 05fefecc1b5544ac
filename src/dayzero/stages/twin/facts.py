"""The numbers that a release's config and tensors are made of, with the config keys that state each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.twin import twin_facts
from dayzero.data.vocabulary import towers, vocabulary
from dayzero.expression import evaluate
from dayzero.schema import Attention, ModelSpec, Release

_STATED = re.compile(r"[\w.-]+\.json: (?P<path>\S+)")
TOWER = "tower."
"""What the names of a tower's numbers begin with."""
LEAST_WIDTH = 32
"""Smaller widths of a tower are kept."""


@dataclass
class Facts:
    """Numbers by name."""

    values: dict[str, int] = field(default_factory=dict)
    """Name -> value in the release."""
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> dotted config keys that state it."""
    derived: dict[str, str] = field(default_factory=dict)
    """Name -> expression, for what no key states."""
    towers: list[TowerKeys] = field(default_factory=list)
    """Tables that describe other parts of the model."""

    def complete(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Every number of a twin: those that were chosen, those that follow from them, and the others as they are."""
        values = {name: value for name, value in self.values.items() if name not in self.derived} | dict(chosen)
        waiting = {name: text for name, text in self.derived.items() if name not in chosen}
        while waiting:
            ready = [name for name, text in waiting.items() if not _names(text) & waiting.keys()]
            for name in ready:
                values[name] = evaluate(waiting.pop(name), values)
        return values


@dataclass(frozen=True)
class TowerKeys:
    """What a table says about a tower."""

    table: str
    """Dotted key of the table."""
    depth: str
    """Key of its layers; empty: not stated."""
    heads: str
    """Key of its heads; empty: not stated."""
    widths: tuple[str, ...]
    """Keys of widths."""


def get(config: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted key; None: there is none."""
    here: Any = config
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


def release_facts(release: Release) -> Facts:
    """All numbers of a release."""
    facts = Facts()
    model, config = release.model, release.config
    stated = _measured(model)
    flags = {name for name in vocabulary().config.flags if _is_set(model, config, name)}
    for name in {**vocabulary().config.sizes, **vocabulary().config.counts}:
        path = _path(model, name)
        value = get(config, path) if path else None
        if type(value) is int:
            facts.values[name], facts.keys[name] = value, _alike(config, path, name, value)
        elif name in stated:
            facts.values[name] = stated[name]
    facts.values.update(dict.fromkeys(vocabulary().config.flags, 0) | dict.fromkeys(flags, 1))
    for name, keys in (("expert_groups", twin_facts().expert_groups), ("chosen_groups", twin_facts().chosen_groups)):
        found = [get(config, place + key) for place in places(config) for key in keys]
        groups = [value for value in found if type(value) is int and value > 0]
        facts.values.update({name: groups[0]} if groups else {})
    _derive(facts)
    _towers(facts, config)
    return facts


def places(config: Mapping[str, Any]) -> list[str]:
    """What keys of the language model begin with."""
    return ["", *(f"{table}." for table in vocabulary().config.text if isinstance(config.get(table), Mapping))]


def _path(model: ModelSpec, name: str) -> str:
    match = _STATED.match(model.sources.get(name, ""))
    return match["path"] if match else ""


def _is_set(model: ModelSpec, config: Mapping[str, Any], name: str) -> bool:
    path = _path(model, name)
    return bool(get(config, path)) if path else name in model.sources


def _alike(config: Mapping[str, Any], path: str, name: str, value: int) -> tuple[str, ...]:
    """The key and others that spell the same fact with the same value, beside it or at the top."""
    words = vocabulary().config
    spellings = {**words.sizes, **words.counts}[name]
    own = next((word for word in spellings if path == word or path.endswith("." + word)), "")
    begins = {path[:len(path) - len(own)], *places(config)}
    found = [place + word for place in sorted(begins) for word in spellings]
    return (path, *dict.fromkeys(one for one in found if one != path and get(config, one) == value))


def _measured(model: ModelSpec) -> dict[str, int]:
    """Numbers as the model says them, by the names of the vocabulary."""
    found = {"layers": len(model.layers), "hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    for attention in model.attentions.values():
        found |= {name: value for name, value in _attention(attention).items() if name not in found}
    for block in model.feed_forwards.values():
        if block.kind == "experts":
            found |= {"expert_width": block.width, "expert_input": block.input_width, "experts": block.experts,
                      "zero_experts": block.zero_experts, "top_k": block.top_k,
                      "shared_experts": block.shared_experts, "shared_width": block.shared_width}
        else:
            found["dense_width"] = block.width
    return found


def _attention(kind: Attention) -> dict[str, int]:
    own = {"sliding": "sliding_", "linear": "linear_"}.get(kind.kind, "")
    found = {f"{own}heads": kind.heads, f"{own}kv_heads": kind.kv_heads, f"{own}head_dim": kind.head_dim,
             f"{own}v_head_dim": kind.v_head_dim}  # fmt: skip
    if kind.kind == "latent":
        rope = kind.rope_dim or 0
        found |= {"q_rank": kind.q_rank or 0, "kv_rank": kind.kv_rank or 0, "rope_dim": rope,
                  "nope_dim": kind.head_dim - rope}  # fmt: skip
        del found["head_dim"]
    return {name: value for name, value in found.items() if value}


def _derive(facts: Facts) -> None:
    """What no key states, and holds."""
    for name, text in twin_facts().derived.items():
        known = _names(text) <= facts.values.keys()
        if name in facts.keys or name not in facts.values or not known:
            continue
        divides = "//" not in text or not facts.values["hidden_size"] % facts.values["heads"]
        if divides and evaluate(text, facts.values) == facts.values[name]:
            facts.derived[name] = text


def _names(text: str) -> set[str]:
    return set(re.findall(r"[a-z_][\w.]*", text))


def _towers(facts: Facts, config: Mapping[str, Any]) -> None:
    words, known = vocabulary().config.towers, towers().facts
    tables = [place + word for place in places(config) for word in words]
    for table in tables:
        numbers = dict(_integers(get(config, table)))
        if not numbers:
            continue
        heads = next((key for key in known["heads"] if key in numbers), "")
        depth = next((key for key in known["depth"] if key in numbers), "")
        widths = tuple(key for key, value in numbers.items()
                       if value >= LEAST_WIDTH and is_width(key) and key not in (heads, depth))
        facts.towers.append(TowerKeys(table, depth, heads, widths))
        for key in (heads, *widths):
            if key:
                facts.values[f"{TOWER}{table}.{key}"] = numbers[key]
                facts.keys[f"{TOWER}{table}.{key}"] = (f"{table}.{key}",)


def _integers(table: object) -> Iterator[tuple[str, int]]:
    """(dotted key, value) of the integers in a table, without those in tables that describe something else."""
    for key, value in table.items() if isinstance(table, Mapping) else ():
        if type(value) is int:
            yield key, value
        elif isinstance(value, Mapping) and "quant" not in key:
            yield from ((f"{key}.{inner}", number) for inner, number in _integers(value))


def is_width(key: str) -> bool:
    """Whether a key of a tower's table is a width."""
    leaf, words = key.rpartition(".")[2], twin_facts()
    return (any(fnmatchcase(leaf, word) for word in words.tower_widths)
            and not any(fnmatchcase(leaf, word) for word in words.not_tower_widths))
