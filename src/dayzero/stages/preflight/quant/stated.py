"""What a release's quantisation config says of each module: which scheme, in which blocks, and which are left plain.

The config's many dialects (one method for all, groups with targets, layers with a scheme of their own, exceptions by
name) become one thing: a scheme for every module name. Their words are data (data/quantisation.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.quantisation import Method, statements

from .entries import REGEX, Entries

Table = Mapping[str, Any]
CLASSES = ("linear",)
"""Targets that stand for every linear layer, as they end in lower case."""
FULL = 16
"""Bits from which on a weight counts as plain."""


@dataclass(frozen=True)
class Format:
    """How the config says that a weight is stored."""

    scheme: str
    """fp8, mxfp8, mxfp4, nvfp4 or w<bits>a<bits>."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale; 0: the whole axis; None: not stated."""
    only: tuple[str, ...] = ()
    """First words of the roles that it applies to; empty: every linear layer."""


@dataclass(frozen=True)
class Stated:
    """The whole statement."""

    understood: bool
    """False: there is a statement in words that are not known, so that nothing follows from it."""
    rules: tuple[tuple[Entries, Format | None], ...] = ()
    """Formats of the modules that they name, first match first; None: plain."""
    rest: Format | None = None
    """Format of every other linear layer; None: plain."""
    excluded: Entries = field(default_factory=lambda: Entries(()))
    """What is left plain."""
    excludes: tuple[str, ...] = ()
    """The entries of lists of excluded modules, as they are written."""

    def of(self, name: str, role: str) -> Format | None:
        """The stated format of a module; None: plain."""
        if self.excluded.match(name):
            return None
        chosen = next((form for entries, form in self.rules if entries.match(name)), self.rest)
        return chosen if chosen and (not chosen.only or role.split(".")[0] in chosen.only) else None

    def formats(self) -> list[Format]:
        """All formats that are stated."""
        return [form for form in (*(form for _, form in self.rules), self.rest) if form]


def stated(table: Table | None, config: Table) -> Stated:
    """What a quantisation table says; `config`: the whole config, which may name a dtype of its own for experts."""
    if table is None:
        return Stated(understood=True)
    excludes = tuple(dict.fromkeys(_excludes(table)))
    rules, rest, understood = _formats(table)
    plain = [*excludes, *(name for name, form in rules if form is None)]
    named = [(Entries([name]), form) for name, form in rules if form is not None]
    expert = _expert_format(config)
    if expert and (rest is None or expert.scheme != rest.scheme):
        named.insert(0, (Entries([f"{REGEX}(?:.*\\.)?experts(?:\\.|$)"]), expert))
    return Stated(understood, tuple(named), rest, Entries(plain), excludes)


def _expert_format(config: Table) -> Format | None:
    """Format of routed experts where the config names their dtype beside the quantisation table."""
    value = config.get("expert_dtype")
    scheme = _element(str(value).lower(), None) if isinstance(value, str) else None
    return _format(scheme, {}) if scheme else None


def _excludes(table: Table) -> Iterator[str]:
    for key in statements().excludes:
        value = table.get(key)
        yield from (entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


Rules = list[tuple[str, Format | None]]


def _formats(table: Table) -> tuple[Rules, Format | None, bool]:
    """(module entry -> format, format of the rest, whether it was understood)."""
    groups = table.get("config_groups")
    if isinstance(groups, Mapping):
        return _groups(table, groups)
    if isinstance(table.get("global_quant_config"), Mapping):
        return _layered(table)
    layers = table.get("quantized_layers")
    if isinstance(layers, Mapping):
        rules: Rules = [(name, _one(entry)) for name, entry in layers.items() if isinstance(entry, Mapping)]
        return rules, None, all(form for _, form in rules)
    rest, only = _one(table), [*_limits(table)]
    rules = [*_exceptions(table), *((entry, rest) for entry in only)]
    return rules, None if only else rest, rest is not None


def _groups(table: Table, groups: Table) -> tuple[Rules, Format | None, bool]:
    """Groups of targets with a table of weights each."""
    rules: Rules = []
    rest: Format | None = None
    for group in groups.values():
        if not isinstance(group, Mapping):
            continue
        form = _described(group.get("weights"), group.get("input_activations"),
                          str(group.get("format") or table.get("format") or ""))
        if group.get("weights") is None:
            continue
        if form is None:
            return [], None, False
        targets = group.get("targets")
        for target in _texts(targets if targets else "Linear"):
            if target.lower().endswith(CLASSES) and not target.startswith(REGEX):
                rest = rest or form
            else:
                rules.append((target, form))
    return rules, rest, True


def _layered(table: Table) -> tuple[Rules, Format | None, bool]:
    """One global table of weights and others for layers by name."""
    rules: Rules = []
    special = table.get("layer_quant_config")
    for name, entry in special.items() if isinstance(special, Mapping) else ():
        if isinstance(entry, Mapping):
            rules.append((name, _described(entry.get("weight"), entry.get("input_tensors"), "")))
    overall = table["global_quant_config"]
    rest = _described(overall.get("weight"), overall.get("input_tensors"), "")
    return rules, rest, rest is not None or bool(rules)


def _described(weights: Any, inputs: Any, how: str) -> Format | None:
    """Format of a table that describes weights (and another that describes activations)."""
    weights = weights[0] if isinstance(weights, list) and weights else weights
    inputs = inputs[0] if isinstance(inputs, list) and inputs else inputs
    if not isinstance(weights, Mapping):
        return None
    bits, group = weights.get("num_bits"), weights.get("group_size")
    bits = 1 + sum(bits) if isinstance(bits, list) and all(isinstance(part, int) for part in bits) else bits
    kind = str(weights.get("type") or weights.get("dtype") or "").lower().removeprefix("torch.")
    if kind == "float" and isinstance(bits, int):
        kind = next((name for name in ("nvfp4", "mxfp4", "mxfp8") if how.lower().startswith(name)), f"fp{bits}")
        if kind == "fp4" and str(weights.get("strategy")) == "tensor_group":
            group = group or 16
    scheme = kind if kind in statements().blocks else _element(kind, group if isinstance(group, int) else None)
    if scheme is None and kind.startswith(("int", "uint")):
        stored = bits if isinstance(bits, int) else _digits(kind)
        scheme = f"w{stored}a{_activation(inputs)}" if stored else None
    return _format(scheme, weights) if scheme else None


def _activation(inputs: Any) -> int:
    """Bits of activations; 16 where they are not quantised."""
    if not isinstance(inputs, Mapping):
        return FULL
    bits = inputs.get("num_bits")
    return bits if isinstance(bits, int) else _digits(str(inputs.get("dtype") or "")) or FULL


def _digits(word: str) -> int:
    """The first number in a word, such as 8 in fp8_e4m3; 0: there is none."""
    found = re.search("[0-9]{1,2}", word)
    return int(found[0]) if found else 0


def _element(kind: str, group: int | None) -> str | None:
    return next((entry.scheme for entry in statements().elements
                 if kind in entry.types and (entry.group is None or entry.group == group)), None)


def _format(scheme: str, table: Table, only: tuple[str, ...] = ()) -> Format:
    """The format with the blocks that the table states, or that are part of the scheme."""
    block = table.get("weight_block_size") or table.get("block_structure")
    sizes = next((table[key] for key in statements().group_sizes if isinstance(table.get(key), int)), None)
    if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block):
        return Format(scheme, (block[0], block[1]), only)
    if scheme in statements().blocks:
        return Format(scheme, statements().blocks[scheme], only)
    if sizes is not None and not isinstance(sizes, bool):
        return Format(scheme, (1, max(0, sizes)), only)
    return Format(scheme, None, only)


def _one(table: Table) -> Format | None:
    """Format of a table that states one method, or an algorithm, for everything."""
    for method in statements().methods:
        value = table.get(method.key)
        if value is None or not any(fnmatchcase(str(value).lower(), pattern) for pattern in method.values):
            continue
        scheme = _filled(method, table)
        if scheme:
            return _format(scheme, table, tuple(method.only))
    return None


def _filled(method: Method, table: Table) -> str | None:
    """The method's scheme with the stated bits; None: it needs bits and there are none, or they are those of a plain
    weight."""
    words = statements()
    weights = _bits(table, words.weight_bits)
    if "{w}" in method.scheme and (not weights or weights >= FULL):
        return None
    return method.scheme.format(w=weights, a=_bits(table, words.activation_bits) or FULL)


def _bits(table: Table, keys: list[str]) -> int | None:
    values = (table.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def _exceptions(table: Table) -> Iterator[tuple[str, Format | None]]:
    """Modules that a table of one method names with values of their own; None: plain."""
    for key in ("extra_config", "dynamic"):
        entries = table.get(key)
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            marked = name.startswith(("+:", "-:"))
            entry = f"{REGEX}{name[2:] if marked else name}" if marked or key == "dynamic" else name
            if name.startswith("-:"):
                yield entry, None
            elif isinstance(value, Mapping):
                yield entry, _one({**table, **value})


def _limits(table: Table) -> Iterator[str]:
    """Modules or blocks to which a method is confined; none: it is for all."""
    for key in ("modules_in_block_to_quantize", "block_name_to_quantize", "to_quant_block_names"):
        yield from _texts(table.get(key))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (text.strip() for text in value.split(",") if text.strip())
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
