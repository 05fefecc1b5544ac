"""Findings in the Static Analysis Results Interchange Format (SARIF 2.1.0), which code hosts show beside the files."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dayzero import __version__
from dayzero.schema import Finding, Findings, Release, Target, Waived
from dayzero.stages.preflight.rule import RULES, Rule

from .places import Place, Places

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
RELEASE = "RELEASE"
"""Base of the addresses of files that are not below the working directory."""
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(found: Findings, release: Release, target: Target, target_file: Path, *, base: Path | None = None) -> Any:
    """The findings as a SARIF log. Addresses of files are relative to `base` (the working directory)."""
    places, rules = Places(release, target, target_file), list(RULES)
    numbers = {rule.name: number for number, rule in enumerate(rules)}
    addresses = _Addresses(release, base or Path.cwd())
    seen: Counter[str] = Counter()
    results = [_result(finding, numbers[finding.rule], addresses.location(places.of(finding), finding), seen)
               for finding in (*found.findings, *found.waived)]
    run = {
        "tool": {"driver": {"name": "dayzero", "version": __version__, "semanticVersion": __version__,
                            "rules": [_descriptor(rule) for rule in rules]}},
        "automationDetails": {"id": f"dayzero/preflight/{quote(release.name, safe='')}@{quote(target.name)}/"},
        "originalUriBaseIds": addresses.bases(),
        "invocations": [{"executionSuccessful": True}],
        "results": results,
        "properties": {"verdict": found.verdict, "facts": found.facts},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _descriptor(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.what},
        "help": {"text": rule.doc, "markdown": rule.doc},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"page": f"docs/rules/{rule.name}.md"},  # helpUri has to be absolute, and help holds the page
    }


def _result(finding: Finding, number: int, location: dict[str, Any], seen: Counter[str]) -> dict[str, Any]:
    result = {
        "ruleId": finding.rule, "ruleIndex": number, "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}\n{finding.hint}".strip()},
        "locations": [location],
        "partialFingerprints": _fingerprint(finding, seen),
        "properties": {"subject": finding.subject, "hint": finding.hint, "facts": finding.facts},
    }
    if isinstance(finding, Waived):
        result["suppressions"] = [{"kind": "external", "status": "accepted",
                                   "justification": f"{finding.reason} (until {finding.expires})"}]
    return result


def _fingerprint(finding: Finding, seen: Counter[str]) -> dict[str, str]:
    """What makes a finding the same in a later run: rule, subject and layout, not lines or numbers; the second one of
    the same gets another. The name is that by which code hosts follow alerts."""
    text = "\n".join((finding.rule, finding.subject, str(finding.facts.get("layout", ""))))
    seen[text] += 1
    return {"primaryLocationLineHash": f"{hashlib.sha256(text.encode()).hexdigest()[:16]}:{seen[text]}"}


class _Addresses:
    """Addresses of files: relative to the working directory, or to the release where it is elsewhere."""

    def __init__(self, release: Release, base: Path) -> None:
        self.base = base.resolve()
        self.root = Path(release.root).resolve() if release.root else None
        self.origin = release.origin

    def location(self, place: Place, finding: Finding) -> dict[str, Any]:
        return {
            "physicalLocation": {"artifactLocation": self._address(place), "region": {"startLine": place.line}},
            "logicalLocations": [{"fullyQualifiedName": finding.subject}],
        }

    def _address(self, place: Place) -> dict[str, str]:
        if place.of_target:
            return {"uri": self._relative(Path(place.file)) or Path(place.file).resolve().as_uri()}
        if self.root is None:  # a card is one file; of what has neither there is only the name
            return {"uri": self._relative(Path(self.origin)) or quote(place.file or self.origin, safe="/@")}
        near = self._relative(self.root / place.file)
        return {"uri": near} if near else {"uri": quote(place.file) or ".", "uriBaseId": RELEASE}

    def _relative(self, path: Path) -> str | None:
        """The address below the working directory; links are not followed, for a file's content may lie elsewhere."""
        whole = path if path.is_absolute() else Path.cwd() / path
        return quote(whole.relative_to(self.base).as_posix()) if whole.is_relative_to(self.base) else None

    def bases(self) -> dict[str, Any]:
        """The folder of the release, or what it was read from."""
        where = {"uri": f"{self.root.as_uri()}/"} if self.root else {}
        return {RELEASE: {**where, "description": {"text": f"the release, read from {self.origin}"}}}
