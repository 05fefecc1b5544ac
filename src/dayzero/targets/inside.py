"""Engines whose model is recorded in the process that runs it. What is special about one is a plug-in: which variables
it needs, how it is started, where the torch module of its model is, and how it is given tokens.

A package adds one with an entry point in the group `dayzero.engines` whose value is `module:attribute`, an
`InsideEngine`. It is imported by the Python that has the engine, which may be that of another environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from dayzero.errors import UsageError, did_you_mean
from dayzero.schema import Noun

ENTRY_POINTS = "dayzero.engines"
_OURS = {"vllm": "dayzero.targets.vllm_inside:ENGINE"}


class Wanted(Noun, frozen=True, kw_only=True):
    """How an engine is to run a release."""

    root: str
    """Folder of the release."""
    dtype: str = ""
    """bf16, f16 or f32; empty: what the engine chooses."""
    longest: int
    """Tokens of the longest sequence that it will be given."""
    top: int
    """How many of the likeliest tokens it is to tell."""
    own: bool = False
    """Whether it may run the release's own code."""
    options: dict[str, Any] = {}
    """Of the engine, by its own names; they win over what the plug-in would choose."""


class Told(Noun, frozen=True, kw_only=True):
    """What the engine itself says about a sequence: row i is about the token at position i + 1."""

    logprobs: tuple[float, ...]
    """Natural logarithm of the probability of each token but the first."""
    likeliest: tuple[tuple[tuple[int, float], ...], ...]
    """(token id, logprob) of the likeliest, best first."""


class RunningModel(Protocol):
    """A model in an engine that runs in this process."""

    version: str
    """Of the engine."""
    module: Any
    """The torch module that is called for every step."""

    def feed(self, tokens: Sequence[int]) -> Told | None:
        """One call of the module with a whole sequence; what the engine says about it, where it says so."""
        ...


class InsideEngine(Protocol):
    """The plug-in of one engine. Nothing of the engine is imported before `running`."""

    variables: Mapping[str, str]
    """Of the environment of its process: without them nothing can be recorded."""
    defaults: Mapping[str, str]
    """The same, where the user has set nothing else."""

    def running(self, wanted: Wanted) -> AbstractContextManager[RunningModel]:
        """Start it. Raises UsageError for options that it does not have."""
        ...


def inside_engines() -> dict[str, EntryPoint]:
    """All by name; a package's does not replace one of ours."""
    found = {name: EntryPoint(name, value, ENTRY_POINTS) for name, value in _OURS.items()}
    return {each.name: each for each in entry_points(group=ENTRY_POINTS)} | found


def inside_engine(name: str) -> EntryPoint:
    """Where the plug-in is. Raises UsageError with the names that there are."""
    known = inside_engines()
    if name not in known:
        raise UsageError(f"no engine {name!r} can be recorded from inside",
                         f"{did_you_mean(name, known)}known: {', '.join(sorted(known))}; others by HTTP, or by three "
                         "lines of Python (docs/check.md)")
    return known[name]
