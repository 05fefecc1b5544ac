"""The first place that is out of tolerance: where it is, what the error looks like, and what that points at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dayzero.errors import StoreError
from dayzero.schema import Divergence
from dayzero.schema.comparison import PlaceDistance, RouterAgreement
from dayzero.schema.located import Pattern
from dayzero.stages.check.patterns import TABLE, Facts, describe

from .assemble import Known
from .measuring import Measured, Run
from .others import common_keys
from .pieces import split_key

_VALUES = 1 << 22
"""Values that a pattern is looked for in."""


def first_divergence(places: Sequence[PlaceDistance], routers: Sequence[RouterAgreement], layout: str
                     ) -> Divergence | None:
    """In the order of execution. Of an input the parent is named: what lies between its children made it."""
    failed = next((each for each in places if not each.passed), None)
    router = next((each for each in routers if not each.passed), None)
    if router is not None and (failed is None or router.order <= failed.order):
        return Divergence(layout=layout, place=f"{router.name} router", layer=router.layer, relative_l2=router.margin,
                          before=router.tolerance, module=router.name, op="choice of experts")
    if failed is None:
        return None
    before = _before(places, failed)
    inward = failed.what == "input"
    module = failed.module.rpartition(".")[0] if inward else failed.module
    op = f"between {before.name if before else 'the start'} and {failed.name}" if inward else failed.kind
    return Divergence(layout=layout, place=failed.name, layer=failed.layer, relative_l2=failed.relative_l2,
                      before=before.relative_l2 if before else 0.0, module=module or failed.module, op=op)


def _before(places: Sequence[PlaceDistance], failed: PlaceDistance) -> PlaceDistance | None:
    earlier = [each for each in places if each.order < failed.order]
    return earlier[-1] if earlier else None


def suspicion(first: Divergence | None, places: Sequence[PlaceDistance], patterns: Sequence[Pattern]) -> str:
    """A sentence; empty when nothing diverges."""
    if first is None:
        return ""
    failed = next((each for each in places if not each.passed and each.name == first.place), None)
    seen = f"; {patterns[0].words}" if patterns else ""
    if failed is None:
        return f"{first.module} chose experts that its scores do not explain: its bias, its groups or its top-k{seen}"
    given = [each for each in places if each.module == failed.module and each.what == "input"
             and each.order < failed.order]
    if failed.what == "input":
        return f"{first.module} computes something else {first.op}{seen}"
    if given and all(each.passed for each in given):
        own = "maths" if patterns and patterns[0].name == TABLE else "weights or maths"
        return f"what {failed.module or 'the model'} was given is within tolerance and what it made is not: its own " \
               f"{own}, or those of modules inside of it that were not recorded{seen}"
    return f"{failed.name} is the first place out of tolerance{seen}"


def patterns_at(first: Divergence | None, measured: Sequence[Measured], places: Sequence[PlaceDistance],
                reference: Known, candidate: Run) -> tuple[Pattern, ...]:
    """Of the values of the first divergent place, as many rows as fit, those after a flip left out."""
    failed = next((each for each in places if first is not None and each.name == first.place), None)
    found = next((each for each in measured if failed is not None and each.address.label == failed.name), None)
    if found is None or found.kept == "statistics":
        return ()
    try:
        theirs = reference.tensor(found.address)
        ours = candidate.other.grid(found.address)
        if ours is None:
            return ()
        keys = common_keys([theirs, ours])
        tokens = theirs.tokens(keys)
        if tokens is not None:
            keys = keys[~candidate.flipped.groups(tokens, found.address, found.order).flipped]
        columns = np.intersect1d(theirs.columns, ours.columns)
        keys = keys[: max(1, _VALUES // max(1, len(columns)))]
        r, x = theirs.read(keys, columns), ours.read(keys, columns)
    except StoreError:
        return ()
    tokens = theirs.tokens(keys)
    sequences, positions = (None, None) if tokens is None else split_key(tokens)
    tp = candidate.other.own.dump.ranks[0].layout.tp
    return describe(r, x, facts=Facts(ranks=(tp,) if tp > 1 else Facts.ranks, positions=positions, sequences=sequences))
