"""The layouts that a search looks at, and which of them break a rule: each rule is asked once for each combination of
the degrees that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.layouts import divisors, layouts
from dayzero.placement.legality import RULES, Rule
from dayzero.placement.many import COLUMNS, Layouts, Shared, shared
from dayzero.schema import Engine, Finding, Layout, ModelSpec, Rejected


def every(model: ModelSpec, world_size: int, *, groups: bool = True, shared_caches: bool = True) -> Layouts:
    """All layouts of so many devices: tp, pp, dp, ep as in `placement.layouts`, each with every number of ranks within
    tp that share attention, and of these with every number that share a sequence's tokens as long as that divides some
    cache which they would otherwise hold in copies. Without `groups` attention is shared by all of tp, and without
    `shared_caches` no tokens are."""
    rows = [(one.tp, one.pp, one.ep, one.dp, cp, attention if attention < one.tp else 0)
            for one in layouts(world_size, model.mixes_experts)
            for attention in (divisors(one.tp) if groups else [one.tp])
            for cp in (divisors(_copies(model, attention)) if shared_caches else [1])]
    return Layouts(*np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T)


def _copies(model: ModelSpec, degree: int) -> int:
    """Copies of a cache that so many ranks hold, of the kind of attention with most."""
    kinds = [attention for attention in model.attentions.values() if attention.kind != "linear" and attention.heads]
    return max((degree if kind.kind == "latent" else gcd(degree, max(1, degree // kind.kv_heads)) for kind in kinds),
               default=1)


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
