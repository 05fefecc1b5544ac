"""The quantisation that a config states, for weights that are not there to be looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.vocabulary import Quantisation, blocks, vocabulary

EXCLUDED = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")


def quantised(table: Mapping[str, Any] | None, problems: list[str]) -> Callable[[str, str], str | None]:
    """A function (block, what its names begin with) -> format of blocks.toml, or None for plain weights.
    What cannot be understood is added to `problems`."""
    if table is None:
        return lambda block, at: None
    flat = dict(_flat(table))
    rule = next((rule for rule in vocabulary().quantisations if _states(rule, flat)), None)
    if rule is None:
        problems.append("quantization_config: a format that is not known; weights are estimated as plain")
        return lambda block, at: None
    excluded = [entry for key in EXCLUDED for entry in _words(flat.get(key))]
    return lambda block, at: None if _is_plain(rule, block, at, excluded) else rule.format


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """All keys and values, the outermost last; keys of weights also as `weights.key`."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in ("input_activations", "output_activations", "kv_cache_scheme"):
            inner = _flat(value)
            found += inner + ([(f"weights.{name}", item) for name, item in inner] if key == "weights" else [])
    return found + list(table.items())


def _states(rule: Quantisation, flat: Mapping[str, Any]) -> bool:
    bits = flat.get("bits", flat.get("num_bits", flat.get("w_bit")))
    wanted = [(rule.quant_method, flat.get("quant_method")), (rule.fmt, flat.get("format")),
              (rule.quant_algo, flat.get("quant_algo")), (rule.bits, bits)]  # fmt: skip
    has = rule.needs is None or bool(flat.get(rule.needs))
    return has and all(want is None or want == got for want, got in wanted)


def _words(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _is_plain(rule: Quantisation, block: str, at: str, excluded: list[str]) -> bool:
    if rule.only and block not in rule.only:
        return True
    modules = [at.replace("{L}", "1") + row.name.replace("{E}", "1") for row in blocks().blocks[block].tensors]
    return all(any(_matches(entry, module) for entry in excluded) for module in modules)


def _matches(entry: str, module: str) -> bool:
    """Entries are regular expressions after `re:`, patterns with `*`, or names of a module or of one of its parents."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            return False
    return fnmatchcase(module, entry) or fnmatchcase(module, f"{entry}.*") or fnmatchcase(module, f"*.{entry}")
