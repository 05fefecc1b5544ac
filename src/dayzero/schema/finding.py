"""Finding: something that a rule saw; Findings: all of them with the verdict that follows."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import msgspec

from .base import Noun

Severity = Literal["error", "warning", "info"]


class Finding(Noun, frozen=True, kw_only=True):
    """One thing that a rule saw."""

    rule: str
    """Name of the rule, as `dayzero rules` lists it."""
    severity: Severity
    """error: it will not work; warning: it works otherwise than one may expect; info: good to know."""
    subject: str
    """What it is about: a config key, a tensor, a file."""
    message: str
    """What is the case, in one sentence."""
    hint: str
    """What to do, in one sentence."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """The numbers behind it."""


class Waived(Finding, frozen=True, kw_only=True):
    """A finding that the target accepts for a while. It does not count for the verdict."""

    reason: str
    """Why it is accepted."""
    expires: datetime.date
    """Last day on which it is."""


class Findings(Noun, frozen=True, kw_only=True):
    """What preflight found."""

    findings: tuple[Finding, ...]
    """Errors first, then warnings, then infos."""
    facts: dict[str, Any]
    """Numbers that release and target determine; the keys are listed in docs/preflight.md."""
    waived: tuple[Waived, ...] = ()
    """Findings that the target's waivers accept, in the same order."""

    @property
    def verdict(self) -> Literal["pass", "warn", "fail"]:
        """fail with any error, else warn with any warning, else pass."""
        severities = {finding.severity for finding in self.findings}
        return "fail" if "error" in severities else "warn" if "warning" in severities else "pass"

    def count(self, severity: Severity) -> int:
        """Findings of that severity."""
        return sum(finding.severity == severity for finding in self.findings)
