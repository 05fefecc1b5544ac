"""What the classes of known model types bring along that their configs do not state: defaults of the config class
(class_defaults.json, made by scripts/make_defaults.py) and what the model's code has built in (class_facts.toml)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class ClassDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """class_defaults.json"""

    source: str
    """Where the values are from."""
    inner: dict[str, str]
    """model_type -> model_type of its language model's table, for a config whose table states none."""
    defaults: dict[str, dict[str, int | bool]]
    """model_type -> key -> value that its class takes where the config does not state it."""

    @property
    def library(self) -> str:
        """The library and its version."""
        return self.source.partition(",")[0]


class ClassFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[classes]] of class_facts.toml: what the code of some model types has whatever the config says."""

    model_types: list[str]
    """The config's model_type, innermost table."""
    source: str
    """Where the facts are from."""
    facts: dict[str, int | bool | str]
    """Fact of the vocabulary -> value, or the name of the fact that it equals."""


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unlike: list[str]
    classes: list[ClassFacts]


@cache
def _facts() -> _Facts:
    return msgspec.toml.decode(files("dayzero.data").joinpath("class_facts.toml").read_bytes(), type=_Facts)


@cache
def class_defaults() -> ClassDefaults:
    """Defaults of config classes."""
    return msgspec.json.decode(files("dayzero.data").joinpath("class_defaults.json").read_bytes(), type=ClassDefaults)


@cache
def class_facts() -> dict[str, ClassFacts]:
    """model_type -> what its code has built in."""
    return {kind: entry for entry in _facts().classes for kind in entry.model_types}


def unlike() -> list[str]:
    """Model types whose blocks are not the standard ones."""
    return _facts().unlike
