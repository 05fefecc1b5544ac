"""Options that engines are started with and that tables of measurements mostly do not state: how often new requests are
looked at, how long prompts are held until there are more of them, tokens of a prefill pass.

Where the notes of a point state them they are as stated, else as the published benchmark of that load has them
(`launches.toml`: configurations, no measurements), else the engine's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from tomllib import loads
from typing import NamedTuple

import msgspec

from .precisions import family

_MOST = 2**40
"""Above which a number is none that anybody means."""
_PAIRS = re.compile(r"([A-Za-z][\w-]*)=(\d+(?:\.\d+)?)")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch states; None: nothing, so it is as the engine has it by itself."""

    looks: float | None = None
    """Decode steps from one look at new requests to the next."""
    holds: float | None = None
    """Decode steps that a prompt is held at most until there are more of them."""
    share: float | None = None
    """Share of the tokens of a prefill pass at which they are held no longer."""
    balance: float | None = None
    """Decode steps that groups with attention of their own hold prompts at most until each group has one."""
    tokens: float | None = None
    """Prompt tokens of a prefill pass; one prompt is always taken, so 1: one by one."""
    draft: float | None = None
    """Tokens that are guessed a step."""


NONE = Options()
"""Of a launch that states none."""


class Point(NamedTuple):
    """What a point states of how it was run."""

    model: str
    """Name, with or without the organisation."""
    precision: str
    """Of the weights."""
    device: str
    """Name of the device."""
    engine: str
    """Name of the engine."""
    version: str
    """Of the engine; empty: not stated."""
    load: tuple[int, int]
    """Tokens of a prompt, of an answer."""
    requests: float
    """Under way at any time."""
    tp: int
    """Ranks of a replica."""
    groups: int
    """Groups of ranks with attention of their own."""


class Launch(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of published benchmarks, and the points that they hold for."""

    source: str
    """The scripts, and what they say."""
    models: tuple[str, ...]
    """Their names; organisation, maker, precision, training stage, date and revision (`v2`) do not count."""
    devices: tuple[str, ...]
    """Names of devices."""
    engine: str
    """Name of the engine."""
    precisions: tuple[str, ...] = ()
    """Of the weights; empty: any."""
    versions: tuple[str, ...] = ()
    """Of the engine, where an empty one stands for points that state none; none at all: any."""
    loads: tuple[tuple[int, int], ...] = ((1024, 1024), (1024, 8192), (8192, 1024))
    """Tokens of a prompt and of an answer."""
    requests: tuple[int, int] = (1, 2**20)
    """Least and most that are under way."""
    most_tp: int = 2**20
    """Ranks of a replica at most."""
    groups: bool | None = None
    """Whether several groups of ranks have attention of their own; None: either."""

    def holds_for(self, point: Point) -> bool:
        """Whether a point was run so, if it is one of the benchmark's."""
        return (point.engine == self.engine and point.load in self.loads and point.tp <= self.most_tp
                and _named(point.model, self.models)
                and point.device in self.devices and self.requests[0] <= point.requests <= self.requests[1]
                and (not self.precisions or point.precision in self.precisions)
                and (not self.versions or point.version in self.versions)
                and self.groups in (None, point.groups > 1))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: Mapping[str, tuple[str, ...]]
    launches: tuple[Launch, ...]


def options(point: Point, notes: str = "") -> Options:
    """Those of a point: as its notes state them, else as published."""
    return stated(notes) or _merged([one for one in _file().launches if one.holds_for(point)])


def stated(notes: str) -> Options | None:
    """The options that `name=number` pairs of a text state; None: none of them."""
    pairs = {name.lower().replace("-", "_"): number for name, value in _PAIRS.findall(notes)
             if 0 < (number := float(value)) < _MOST}
    found = {field: pairs[name] for field, names in _file().names.items() for name in names if name in pairs}
    return Options(**found) if found else None


def _merged(several: list[Launch]) -> Options:
    return Options(**{field: next((value for one in several if (value := getattr(one, field)) is not None), None)
                      for field in Options.__struct_fields__})


def _named(text: str, models: tuple[str, ...]) -> bool:
    """Whether a text is the name of one of the models, and not of one that was made of it."""
    words = family(text.rsplit("/", 1)[-1])
    several = (words, words[:-1]) if words and re.fullmatch(r"v\d", words[-1]) else (words,)
    return any(one in (known, (*one[:1], *known)) for known in map(family, models) for one in several)


@cache
def _file() -> _File:
    return msgspec.convert(loads(files(__package__).joinpath("launches.toml").read_text()), _File)
