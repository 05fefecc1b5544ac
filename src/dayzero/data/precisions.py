"""What converted checkpoints look like: which matrices have how many bits."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from tomllib import loads

import msgspec

_DATE = re.compile(r"\d{4}(\d{4})?")


class Precision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A precision that checkpoints are converted to."""

    scheme: str
    """Scheme of the converted matrices."""
    words: tuple[str, ...]
    """What names and tables call it."""
    bits: float
    """Of one stored weight, with its share of the scales."""
    group: int
    """Values along a row that share a scale; 1: cut anywhere."""
    roles: tuple[str, ...]
    """First words of the roles of the matrices that are converted."""
    source: str
    """Where it is from."""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published checkpoint that differs from what its precision says in general."""

    name: str
    """Its name, without the organisation, in lower case."""
    scheme: str
    """Its precision."""
    roles: tuple[str, ...]
    """First words of the roles of the matrices that are converted."""
    plain_layers: tuple[int, ...] = ()
    """Layers that are not converted."""
    source: str
    """Where it is from."""
    until: str = ""
    """Last day of the first published files, as 2024-08-05."""
    kv_heads: int | None = None
    """Key/value heads in the first published files; None: as later."""
    until_source: str = ""
    """Where that is from."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    others: frozenset[str]
    precisions: tuple[Precision, ...]
    variants: tuple[Variant, ...]


@cache
def _file() -> _File:
    return msgspec.convert(loads(files(__package__).joinpath("precisions.toml").read_text()), _File)


def precision(text: str) -> Precision | None:
    """The first precision that a text names as a word of its own, such as `awq int4` or `Name-8B-FP8`."""
    words = re.split(r"[^a-z0-9_]+", text.lower())
    return next((one for one in _file().precisions if any(word in words for word in one.words)), None)


def precision_names() -> list[str]:
    """All words that name a precision."""
    return [word for one in _file().precisions for word in one.words]


def variant(name: str) -> Variant | None:
    """The published checkpoint of that name, without its organisation and any first word that names the maker."""
    known = {one.name: one for one in _file().variants}
    name = name.lower()
    return next((one for own, one in known.items() if name == own or name.endswith("-" + own)), None)


def is_precision(word: str) -> bool:
    """Whether a word of a name says a precision, and nothing else of the model."""
    return any(word in one.words for one in _file().precisions)


def family(name: str) -> tuple[str, ...]:
    """The words of a name that are no precision, training stage or date."""
    words = re.split(r"[-_ ]+", name.lower())
    return tuple(word for word in words
                 if word and not is_precision(word) and word not in _file().others and not _DATE.fullmatch(word))
