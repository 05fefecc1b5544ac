"""Gate: whether a release still runs as it did when somebody last said that it was right."""

from __future__ import annotations

from typing import Literal

from .base import Noun

Part = Literal["weights", "files", "libraries", "machine"]
GATE_FORMAT = 1
"""Version of the format."""


class Identity(Noun, frozen=True, kw_only=True):
    """What a run depends on. Two that are equal should give the same numbers."""

    weights: dict[str, str] = {}
    """Weight file -> SHA-256."""
    files: dict[str, str] = {}
    """Config, code, tokenizer and other files -> SHA-256."""
    libraries: dict[str, str] = {}
    """Library -> version."""
    machine: dict[str, str] = {}
    """Processor and architecture."""


class Baseline(Noun, frozen=True, kw_only=True):
    """The last good state, as it lies in a baseline folder beside its golden dump."""

    format: int = GATE_FORMAT
    """Version of the format."""
    made: str
    """When, in UTC."""
    release: str
    """Name of the release."""
    twin: bool
    """Whether a miniature stood for it."""
    seed: int
    """Of the tokens, and of a miniature's weights."""
    dtype: str = ""
    """Precision of the runs that it judges; empty: the release's own."""
    identity: Identity
    """What it was made with."""
    digest: str
    """SHA-256 over all that the reference recorded."""


class GateCheck(Noun, frozen=True, kw_only=True):
    """One thing that was tried."""

    name: str
    """What, such as `bf16, tp=2: against the reference`."""
    outcome: Literal["pass", "fail", "inconclusive", "skipped"]
    """skipped: it could not be tried; `detail` says why."""
    detail: str = ""
    """What was seen."""
    where: str = ""
    """First place that is wrong, as the model names it."""
    margin: float | None = None
    """Largest of observed / tolerance over everything that was compared: beyond 1 it fails."""
    seconds: float = 0.0
    """How long it took."""


class Changed(Noun, frozen=True, kw_only=True):
    """Something that is not as it was at the baseline."""

    what: Part
    """Part of the identity."""
    name: str
    """File or library."""
    before: str
    """Digest or version; empty: it was not there."""
    after: str
    """Likewise; empty: it is gone."""


class GateResult(Noun, frozen=True, kw_only=True):
    """All of it."""

    release: str
    """Name of the release."""
    outcome: Literal["pass", "fail", "inconclusive"]
    """fail when a check fails; inconclusive when none fails and one cannot tell, or nothing could be tried."""
    checks: tuple[GateCheck, ...]
    """In the order in which they were made."""
    baseline: str
    """When the baseline was made; empty: there was none."""
    changed: tuple[Changed, ...]
    """What is not as it was then."""
    identity: Identity
    """What it was made with."""
    made: str
    """When, in UTC."""
    stored: bool
    """Whether this is the baseline now."""
    seconds: float
    """How long all of it took."""
    not_noted: str = ""
    """Why the history does not hold it; empty: it does."""
