"""Rules about layouts: those of placement, for every layout that the target asks for.

Without a layout what tensor parallelism over all devices of a node would break is an info. Only where no layout of the
whole cluster is legal there are errors: what the closest one breaks.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dayzero.placement.legality import RULES as LAYOUT_RULES
from dayzero.placement.legality import Rule as LayoutRule
from dayzero.schema import Finding, Layout
from dayzero.stages.preflight.rule import Case, add


def _check(case: Case, layout_rule: LayoutRule) -> Iterator[Finding]:
    for layout in case.target.layouts:
        yield from _told(case, layout_rule, layout, "{layout}: {message}")
    if case.nearest:
        text = "no layout of the whole cluster is possible; {layout}: {message}"
        yield from (finding for finding in _told(case, layout_rule, case.nearest, text) if finding.severity == "error")
    elif not case.target.layouts:
        node = Layout(tp=case.target.cluster.devices_per_node)
        for finding in _told(case, layout_rule, node, "{layout} would not work: {message}"):
            if finding.severity == "error":
                yield msgspec.structs.replace(finding, severity="info")


def _told(case: Case, layout_rule: LayoutRule, layout: Layout, text: str) -> Iterator[Finding]:
    """What the rule finds, with the layout in facts and message."""
    for finding in layout_rule(case.model, layout, case.target.engine):
        yield msgspec.structs.replace(finding, facts={**finding.facts, "layout": layout.text},
                                      message=text.format(layout=layout.text, message=finding.message))


def _register(name: str, layout_rule: LayoutRule) -> None:
    add(name, lambda case: _check(case, layout_rule), layout_rule.__doc__)


for _name, _layout_rule in LAYOUT_RULES.items():
    _register(_name, _layout_rule)
