"""Rules about layouts: those of placement, for every layout that the target asks for.

Without a layout nothing is an error; what tensor parallelism over all devices of a node would break is then an info.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dayzero.placement.legality import RULES as LAYOUT_RULES
from dayzero.placement.legality import Rule as LayoutRule
from dayzero.schema import Finding, Layout

from .rule import Case, add


def _check(case: Case, layout_rule: LayoutRule) -> Iterator[Finding]:
    engine = case.target.engine
    for layout in case.target.layouts:
        for finding in layout_rule(case.model, layout, engine):
            facts = {**finding.facts, "layout": layout.text}
            yield msgspec.structs.replace(finding, message=f"{layout.text}: {finding.message}", facts=facts)
    if not case.target.layouts:
        layout = Layout(tp=case.target.cluster.devices_per_node)
        for finding in layout_rule(case.model, layout, engine):
            if finding.severity == "error":
                facts = {**finding.facts, "layout": layout.text}
                yield msgspec.structs.replace(finding, severity="info", facts=facts,
                                              message=f"{layout.text} would not work: {finding.message}")


def _register(name: str, layout_rule: LayoutRule) -> None:
    add(name, lambda case: _check(case, layout_rule), layout_rule.__doc__)


for _name, _layout_rule in LAYOUT_RULES.items():
    _register(_name, _layout_rule)
