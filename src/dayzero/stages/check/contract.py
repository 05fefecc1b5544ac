"""A verdict for the terminal, and what `dayzero check --json` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dayzero.schema import Check, LayerError, Verdict

from .measure import FAR


def to_contract(verdict: Verdict) -> dict[str, Any]:
    """{passed, checks, first_divergence, pattern, suspicion}; the last two are None: patterns are not looked for."""
    first = verdict.first_divergence
    return {
        "passed": verdict.passed, "proven": verdict.proven,
        "checks": [{"name": each.name, "tolerance": each.tolerance, "source": each.source, "observed": each.observed,
                    "passed": each.passed, "detail": each.detail} for each in verdict.checks],
        "first_divergence": first and {"layout": first.layout, "layer": first.layer, "op": None,
                                       "module": first.tensor.rpartition(".")[0] or first.place},
        "pattern": None, "suspicion": None, "reference": verdict.reference,
        "not_made": verdict.not_made, "needless": verdict.needless,
    }  # fmt: skip


def overview(verdict: Verdict) -> RenderableType:
    """What failed, for each layout the layer that is nearest to its tolerance, and all that is no layer."""
    table = Table("check", "observed", "tolerance", "passed", "detail", title=f"against {verdict.reference}")
    for check in verdict.checks:
        if not check.passed or not _is_layer(check):
            table.add_row(check.name, f"{check.observed:.3g}", f"{check.tolerance:.3g}",
                          "yes" if check.passed else "NO", check.detail)
    lines = [Text(_nearest(verdict.layers, layout)) for layout in dict.fromkeys(each.layout for each in verdict.layers)]
    first = verdict.first_divergence
    where = [Text(f"first divergence: {first.place} with {first.layout}: relative L2 {first.relative_l2:.3g}, "
                  f"{first.before:.3g} just before")] if first else []
    where += [Text(f"its weights differ: {first.tensor}")] if first and first.tensor else []
    left = [Text(f"not made: {name} ({why})") for name, why in (verdict.not_made | verdict.needless).items()]
    done = sum(check.passed for check in verdict.checks)
    short = (f"; not proven in full: comparisons that were not made: {len(verdict.not_made)}"
             if verdict.passed and verdict.not_made else "")
    return Group(table, *lines, *where, *left, Text(f"{done} of {len(verdict.checks)} checks pass{short}"))


def _is_layer(check: Check) -> bool:
    return check.name.endswith(("output, relative L2", "addition, relative L2"))


def _nearest(layers: tuple[LayerError, ...], layout: str) -> str:
    own = [each for each in layers if each.layout == layout]
    worst = max(own, key=lambda each: each.relative_l2 / each.tolerance if each.tolerance else FAR)
    return (f"{layout}: {len(own)} places; nearest to its tolerance: {worst.place}, relative L2 "
            f"{worst.relative_l2:.3g} of {worst.tolerance:.3g}, cosine {worst.cosine:.6f}")
