"""What training stacks do where a table of measured steps does not say, and how they count operations."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from dayzero.schema import Noun


class Stack(Noun, frozen=True, kw_only=True):
    """What a stack does unless it is told otherwise."""

    words: tuple[str, ...]
    """Words that say in a source that it is this one."""
    zero: int
    """What replicas share, see `Setup.zero`; without a pipeline."""
    zero_pipelined: int
    """The same with one."""
    gradient_bytes: int
    """Of one gradient."""
    optimiser_bytes: int
    """Of what the optimiser keeps for a parameter."""
    logit_bytes: int
    """Of one logit."""
    selective: str
    """What its selective recomputation repeats, see `Setup.recompute`."""
    stages_divide_batch: bool
    """Whether a pipeline cuts the local batch into as many micro-batches as it has stages."""
    least: dict[str, int]
    """The smallest bytes of these that the stack can be told to keep."""
    most: dict[str, int]
    """The largest."""
    source: str
    """Where that is from."""


class Counted(Noun, frozen=True, kw_only=True):
    """How the software of some dates counted the operations of a step."""

    words: tuple[str, ...]
    """Words that say in a source that it is this one."""
    before: str
    """Year and month, `26.06`, from which on it counts what the model asks for."""
    windows: bool
    """Whether attention in a window counts as such."""
    ungated: tuple[str, ...]
    """Types of models whose gated experts are counted without the gate."""
    source: str
    """Where that is from."""


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("stacks.toml").read_text())


@cache
def stacks() -> tuple[Stack, ...]:
    """All stacks, in the order of the file; the last is for all others."""
    return tuple(msgspec.convert(entry, Stack) for entry in _content()["stacks"])


def stack(told: str) -> Stack:
    """The stack that a source names, else the last entry."""
    return next((one for one in stacks() if any(word in told for word in one.words)), stacks()[-1])


def counted(told: str, date: str) -> Counted | None:
    """How the software of that date, which a source names, counted operations; None: by what the model asks for."""
    known = (msgspec.convert(entry, Counted) for entry in _content()["counted"])
    return next((one for one in known if any(word in told for word in one.words) and date < one.before), None)
