"""preflight: what can be seen to go wrong before anything is launched, from headers, config and target alone."""

from __future__ import annotations

from dayzero.schema import Findings, Release, Target
from dayzero.schema.coverage import Coverage

from . import (  # noqa: F401  (each registers its rules)
    code,
    config,
    coverage,
    dtypes,
    engine,
    files,
    keys,
    layouts,
    memory,
    mtp,
    quant,
    rope,
    scales,
    schemes,
    support,
    values,
    weights,
)
from .facts import facts
from .ledger import config_ledger, ledger_table
from .rule import RULES, Case, Rule
from .tables import findings_table, rules_table

__all__ = ["Case", "Rule", "config_ledger", "findings_table", "ledger_table", "preflight", "rules", "rules_table"]

_ORDER = ("error", "warning", "info")


def preflight(release: Release, target: Target, *, values: bool = False,
              declared: Coverage | None = None) -> Findings:
    """All findings of all rules, errors first, and the facts; `values`: those that read small tensors too;
    `declared`: the ledger of weights against a library's model. Raises ReleaseError where a size that the cache depends
    on is not known."""
    case = Case(release, target, values, declared)
    found = [finding for rule in RULES for finding in rule.check(case)]
    found.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Findings(findings=tuple(found), facts=facts(case))


def rules() -> tuple[Rule, ...]:
    """All rules, by name."""
    return tuple(RULES)
