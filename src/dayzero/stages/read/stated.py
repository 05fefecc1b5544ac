"""The quantisation that a config states, for weights that are not there to be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dayzero.data.vocabulary import Quantisation, vocabulary

from .patterns import Patterns, tail

EXCLUDED = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
ACTIVATIONS = ("input_activations", "output_activations", "kv_cache_scheme")
WHOLE_ROW = -1
"""Stated group size that means one scale for each row."""


@dataclass(frozen=True)
class Quantised:
    """What a config states: which format, how large its groups and blocks are, and which modules are left plain."""

    format: str | None = None
    """Format of blocks.toml; None: weights are plain."""
    only: tuple[str, ...] = ()
    """Blocks that it applies to; empty: all."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Stated sizes by the names that formats use; what is not stated is the format's default."""
    names: frozenset[str] = frozenset()
    """Excluded modules or parts of their paths, from `layers.` on where they are in a layer."""
    patterns: Patterns = field(default_factory=lambda: Patterns((), []))
    """Excluded modules as regular expressions after `re:`, or with `*`."""

    def of(self, block: str) -> str | None:
        """Format of a block's matrices."""
        return None if self.only and block not in self.only else self.format

    def leaves_plain(self, module: str) -> bool:
        """Whether a module of the decoder, such as `model.layers.3.mlp.up_proj`, is excluded."""
        parts = tail(module).split(".")
        paths = (".".join(parts[first:last]) for first, last in combinations(range(len(parts) + 1), 2))
        return not self.names.isdisjoint(paths) or self.patterns.match(module)


def quantised(table: Mapping[str, Any] | None, problems: list[str]) -> Quantised:
    """What a config's table states. What cannot be understood is added to `problems`."""
    if table is None:
        return Quantised()
    flat = dict(_flat(table))
    rule = next((rule for rule in vocabulary().quantisations if _states(rule, flat)), None)
    if rule is None:
        problems.append("quantization_config: a format that is not known; weights are estimated as plain")
        return Quantised()
    excluded = [entry for key in EXCLUDED for entry in _words(flat.get(key)) if not _elsewhere(entry)]
    special = {entry: None for entry in excluded if entry.startswith("re:") or "*" in entry}
    return Quantised(format=rule.format, only=tuple(rule.only), sizes=dict(_sizes(flat)),
                     names=frozenset(tail(entry) for entry in excluded if entry not in special),
                     patterns=Patterns(special, problems))  # fmt: skip


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """All keys and values, the outermost last; keys of weights also as `weights.key`."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in ACTIVATIONS:
            inner = _flat(value)
            found += inner + ([(f"weights.{name}", item) for name, item in inner] if key == "weights" else [])
    return found + list(table.items())


def _states(rule: Quantisation, flat: Mapping[str, Any]) -> bool:
    bits = flat.get("bits", flat.get("num_bits", flat.get("w_bit")))
    wanted = [(rule.quant_method, flat.get("quant_method")), (rule.fmt, flat.get("format")),
              (rule.quant_algo, flat.get("quant_algo")), (rule.bits, bits)]  # fmt: skip
    has = rule.needs is None or bool(flat.get(rule.needs))
    return has and all(want is None or want == got for want, got in wanted)


def _sizes(flat: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Stated sizes of groups and blocks, by the names that formats use."""
    group = flat.get("group_size", flat.get("q_group_size"))
    if group == WHOLE_ROW or (group is None and flat.get("strategy") == "channel"):
        yield "group", WHOLE_ROW
    elif type(group) is int and group > 0:
        yield "group", group
    block = flat.get("weight_block_size", flat.get("weights.block_structure"))
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        yield from zip(("block_out", "block_inp"), block, strict=True)


def _words(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _elsewhere(entry: str) -> bool:
    """Whether an entry is about a part of the model that is not the decoder."""
    return any(part in words for part in entry.split(".") for words in vocabulary().scopes.values())
