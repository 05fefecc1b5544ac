"""Which kinds of layouts the measured points have that times of serving are fitted to: data/covers.toml."""

from __future__ import annotations

import functools
from importlib.resources import files

import msgspec

from dayzero.schema import Noun


class Covers(Noun, frozen=True, kw_only=True):
    """The points."""

    source: str
    """What they are."""
    points: int
    """How many there are."""
    kinds: dict[str, int]
    """Kind of layout -> points that were run with such a one."""


@functools.cache
def covers() -> Covers:
    """As shipped."""
    return msgspec.toml.decode(files(__package__).joinpath("covers.toml").read_bytes(), type=Covers)
