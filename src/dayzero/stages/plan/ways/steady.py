"""Layouts that keep up with the requests that arrive, and why the others do not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts
from dayzero.schema import Arrivals, Candidate, Family, Rejected, Target, Workload
from dayzero.stages.plan.evaluate import Evaluated
from dayzero.stages.plan.requests.load import NAMES

RULE = "arrival-rate"
"""What rejected layouts are listed under."""


class Steady(NamedTuple):
    """Layouts sorted by whether they keep up."""

    found: Evaluated
    """Those that do, and those that do not fit."""
    rejected: tuple[Rejected, ...]
    """The others."""
    families: tuple[Family, ...]
    """The same as one."""


def steady(found: Evaluated, workload: Workload) -> Steady:
    """Which layouts are left; without a rate all are."""
    if not found.arrivals:
        return Steady(found, (), ())
    late = np.asarray(found.fits, dtype=bool) & ~found.arrivals["stable"]
    rows, most = np.flatnonzero(late), found.arrivals["capacity"]
    asked = f"arrival_rate: {workload.arrival_rate:.3g} requests a second arrive, and it keeps up with"
    rejected = tuple(Rejected(layout=found.layouts[int(row)], rule=RULE, message=f"{asked} {most[row]:.3g}")
                     for row in rows)
    family = [Family(degrees={}, rule=RULE, message=f"{asked} at most {most[rows].max():.3g}", layouts=len(rows),
                     example=found.layouts[int(rows[most[rows].argmax()])])] if len(rows) else []
    return Steady(taken(found, np.flatnonzero(~late)), rejected, tuple(family))


def taken(found: Evaluated, rows: Value) -> Evaluated:
    """Some rows."""
    def column(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: column(value) for key, value in values.items()}
        return values.take(rows) if isinstance(values, Layouts) else values[..., rows]

    return replace(found, **{field.name: column(getattr(found, field.name)) for field in fields(found)})


def by_latency(found: Evaluated, workload: Workload) -> Evaluated:
    """For ranking: where all layouts answer what arrives, those come first that answer a request sooner."""
    if not found.arrivals:
        return found
    sooner = 1 / (found.ttft_s + (workload.output_tokens - 1) * found.tpot_s)
    return replace(found, tokens_per_s=sooner)


def loaded(target: Target, found: Evaluated, row: int) -> Target:
    """The target with as many sequences as a layout decodes at a time."""
    if not found.arrivals or not found.arrivals["stable"][row]:
        return target
    together = max(1, round(float(found.arrivals["sequences"][row])))
    return msgspec.structs.replace(target, workload=msgspec.structs.replace(target.workload, concurrency=together))


def arriving(candidate: Candidate, found: Evaluated, row: int, workload: Workload) -> Candidate:
    """The candidate with what arrivals make of it."""
    return msgspec.structs.replace(candidate, arrivals=arrivals(found, row, workload))


def arrivals(found: Evaluated, row: int, workload: Workload) -> Arrivals | None:
    """What arrivals make of one layout; None: there is no rate, or it does not fit."""
    if not found.arrivals or not found.fits[row]:
        return None
    columns = {name: values[..., row] for name, values in found.arrivals.items()}
    return Arrivals(
        rate=workload.arrival_rate, capacity=float(columns["capacity"]), sequences=float(columns["sequences"]),
        ttft_percentiles=dict(zip(NAMES, map(float, columns["ttft"]), strict=True)),
        gap_percentiles=dict(zip(NAMES, map(float, columns["gap"]), strict=True)),
        tokens_of_pass=workload.acceptance_length)
