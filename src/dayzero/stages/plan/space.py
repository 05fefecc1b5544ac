"""The layouts that a search looks at, and which of them break a rule: each rule is asked once for each combination of
the degrees that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.legality import RULES, Rule
from dayzero.placement.many import Layouts, Shared, shared
from dayzero.schema import Engine, Finding, Layout, ModelSpec, Rejected


@dataclass(frozen=True)
class Judged:
    """Layouts, and the errors that the rules find in them."""

    layouts: Layouts
    """The layouts."""
    errors: tuple[Shared[tuple[Finding, ...]], ...]
    """Of each rule."""

    @property
    def legal(self) -> Value:
        """Which of them break no rule."""
        return ~np.any([found.column(bool) for found in self.errors], axis=0)

    def rejected(self) -> Iterator[Rejected]:
        """Every error of every layout, layout by layout."""
        for row in np.flatnonzero(~self.legal):
            layout = self.layouts[int(row)]
            for found in self.errors:
                for error in found.values[found.which[row]]:
                    yield Rejected(layout=layout, rule=error.rule, message=f"{error.subject}: {error.message}")


def judge(model: ModelSpec, engine: Engine, layouts: Layouts) -> Judged:
    """What preflight's rules say about the layouts."""
    return Judged(layouts, tuple(shared(partial(_errors, rule, model, engine), layouts) for rule in RULES.values()))


def _errors(rule: Rule, model: ModelSpec, engine: Engine, layout: Layout) -> tuple[Finding, ...]:
    return tuple(finding for finding in rule(model, layout, engine) if finding.severity == "error")
