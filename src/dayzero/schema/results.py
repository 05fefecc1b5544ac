"""Results: everything that the stages made for one release on one target; what the report is written from."""

from __future__ import annotations

import msgspec

from .base import Noun
from .bundle import Bundle
from .finding import Findings
from .graph import OpGraph
from .plan import Plan
from .record import RunRecord
from .release import Release
from .store import Status
from .target import Target
from .verdict import Verdict


class StageResult(Noun, frozen=True, kw_only=True):
    """How one stage ended."""

    name: str
    """Name of the stage."""
    status: Status
    """done, failed or not_possible."""
    reason: str
    """Why it failed or is not possible; empty when done."""
    hint: str
    """What would make it possible; may be empty."""
    seconds: float
    """What it took when it last ran."""


class Results(Noun, frozen=True, kw_only=True):
    """What is known so far. A noun is None when its stage failed, is not possible, or has not run."""

    stages: tuple[StageResult, ...]
    """How each stage ended, in order."""
    target: Target
    """What the release is adapted to."""
    release: Release
    """From read."""
    findings: Findings | None = None
    """From preflight."""
    graph: OpGraph | None = None
    """From trace."""
    plan: Plan | None = None
    """From plan."""
    record: RunRecord | None = None
    """From run."""
    verdict: Verdict | None = None
    """From check."""
    bundle: Bundle | None = None
    """From emit."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions that the results depend on."""
