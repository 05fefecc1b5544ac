"""preflight: what can be seen to go wrong before anything is launched, from headers, config and target alone."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from dayzero.schema import Findings, Release, Target
from dayzero.schema.consumption import Consumption
from dayzero.schema.coverage import Coverage

from . import registered  # noqa: F401
from .config.ledger import config_ledger, ledger_table
from .facts import facts
from .output.sarif import sarif
from .output.tables import overview, rule_page, rules_table
from .rule import RULES, Case, Rule, chosen
from .waivers import divide, refuse_unknown

__all__ = ["Case", "Rule", "chosen", "config_ledger", "ledger_table", "overview", "preflight", "rule_page", "rules",
           "rules_table", "sarif"]

_ORDER = ("error", "warning", "info")


def preflight(release: Release, target: Target, *, values: bool = False,
              declared: Coverage | None = None, consumed: Consumption | None = None, select: Iterable[str] = (),
              ignore: Iterable[str] = (), today: datetime.date | None = None) -> Findings:
    """All findings of the rules, errors first, those that the target waives apart, and the facts.

    `values`: rules that read small tensors too; `declared`: the ledger of weights against a library's model;
    `consumed`: the keys that its code reads; `select` and `ignore`: names of rules, and prefixes that end in a hyphen;
    `today`: the day that waivers expire by. Raises UsageError for an unknown rule, TargetError for one in a waiver,
    ReleaseError where a size that the cache depends on is not known."""
    ruling = chosen(select, ignore)
    refuse_unknown(target)
    case = Case(release, target, values, declared, consumed, today)
    case.found = {rule.name: list(rule.check(case)) for rule in ruling if not rule.last}
    kept, waived = divide(case)
    kept += [finding for rule in ruling if rule.last for finding in rule.check(case)]
    kept.sort(key=lambda finding: _ORDER.index(finding.severity))
    waived.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Findings(findings=tuple(kept), facts=facts(case), waived=tuple(waived))


def rules() -> tuple[Rule, ...]:
    """All rules, by name."""
    return tuple(RULES)
