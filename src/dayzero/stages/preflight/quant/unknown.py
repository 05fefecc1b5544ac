"""Quantisation that a config states in words that nothing here understands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dayzero.schema import Finding
from dayzero.stages.preflight.rule import Case

_METHODS = ("quant_method", "quant_algo")
"""Keys of a quantisation table that name its method."""
_TABLE = "quantization_config"
"""Subject where no method is named."""


def unknown_method(case: Case) -> Iterator[Finding]:
    """A warning where a quantisation table says nothing of weights that is understood here: then the rules about
    formats had nothing to compare. A table about the cache alone is none of these."""
    table = case.model.quantization
    if table is None or case.stated.understood or _of_cache_alone(table):
        return
    method = next((str(table[key]) for key in _METHODS if table.get(key)), "")
    what = f"what the method {method} stores is not known here" if method else f"{_TABLE} names no method"
    yield Finding(rule="quant-unsupported", severity="warning", subject=method or _TABLE,
                  message=f"{what}: formats were not compared",
                  hint="look whether the engine runs this method, and whether the config states it in full",
                  facts={"stated": sorted(table)})


def _of_cache_alone(table: Mapping[str, Any]) -> bool:
    """Whether the cache is quantised, and the method of weights is null or absent."""
    cache = any(value for key, value in table.items() if "kv_cache" in key)
    names_none = not table.get("quant_algo") and ("quant_algo" in table or not table.get("quant_method"))
    return cache and names_none
