"""Rules about the config itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dayzero.data.vocabulary import vocabulary
from dayzero.schema import Finding

from .rule import Case, rule


@rule("config-list-length")
def config_list_length(case: Case) -> Iterator[Finding]:
    """A list with one entry for each layer has another number of entries.

    ## What
    A list such as layer_types is shorter or longer than the layers, with or without those for multi-token prediction.

    ## Why
    Layers at the end get no kind, or the wrong one: code that indexes the list stops, code that zips drops layers.

    ## Example
    47 entries of layer_types for 48 layers.

    ## How to fix
    Correct the list or the number of layers in config.json.
    """
    words = vocabulary().config
    spellings = set(words.spellings()["layer_types"])
    layers = len(case.model.layers)
    allowed = sorted({layers, layers + case.model.mtp_layers})
    for key, values in _lists(case.release.config, set(words.towers)):
        if key in spellings and len(values) not in allowed:
            yield Finding(rule="config-list-length", severity="error", subject=key,
                          message=f"{key} has {len(values)} entries for {layers} layers",
                          hint="correct the list or the number of layers in config.json",
                          facts={"length": len(values), "allowed": allowed})


def _lists(table: Mapping[str, Any], towers: set[str]) -> Iterator[tuple[str, list[Any]]]:
    for key, value in table.items():
        if isinstance(value, list):
            yield key, value
        elif isinstance(value, Mapping) and key not in towers:
            yield from _lists(value, towers)
