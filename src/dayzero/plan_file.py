"""A plan in a file: what `dayzero plan --json` printed, 5-plan.json of a run directory, or the directory itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dayzero.errors import ReleaseError, UsageError
from dayzero.runtime.budgets import budgets
from dayzero.runtime.seat import HOST
from dayzero.schema import Budget, Layout, Offload, from_json
from dayzero.stages.read.folder import read_bounded
from dayzero.stages.run.session import Way

_STAGE = "5-plan.json"
_LIMIT = 64 * 2**20
_HINT = "give what dayzero plan --json printed, or a run directory with a plan"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What one layout of a plan says about how to run it."""

    layout: Layout
    """The degrees."""
    fits: bool
    """Whether every device has room."""
    stages: tuple[tuple[int, int], ...] = ()
    """[first layer, end) of each pipeline stage; empty: the file does not say."""
    bytes_per_stage: tuple[dict[str, int], ...] = ()
    """Bytes of one device of each stage by cause."""
    offload: Offload | None = None
    """What it keeps outside of the devices."""

    def budgets(self, *, device: bool) -> tuple[Budget, ...]:
        """What the weights of each rank may take; empty: there is no limit. See runtime.budgets."""
        return budgets(self, device=device)


def read_plan(path: Path) -> tuple[Planned, ...]:
    """The layouts of a plan for serving, best first. Raises UsageError for a file that is none."""
    file = path / _STAGE if path.is_dir() else path
    try:
        found = from_json(read_bounded(file, _LIMIT, str(file)), dict[str, Any])
        entries = found["data"].get("candidates") if isinstance(found.get("data"), dict) else found.get("plans")
        plans = msgspec.convert(entries or [], tuple[Planned, ...])
    except ReleaseError as error:
        raise UsageError(f"{error.message}", _HINT) from None
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no plan for serving: {error}", _HINT) from None
    if not plans:
        raise UsageError(f"{file} has no layout for serving", _HINT)
    return plans


def chosen_plan(plans: Sequence[Planned], asked: Sequence[Layout]) -> Planned:
    """The plan of the layout that is asked for, or the first that fits. Raises UsageError when there is none."""
    if asked:
        found = next((one for one in plans if one.layout == asked[0]), None)
        if found is None:
            near = ", ".join(one.layout.text for one in plans[:5])
            raise UsageError(f"the plan has no layout {asked[0].text}", f"it has {near}; or leave --plan out")
        return found
    fitting = next((one for one in plans if one.fits), None)
    if fitting is None:
        raise UsageError("no layout of the plan fits", "name one with --layout, or make a plan for another target")
    return fitting


def check_stages(planned: Planned, layers: int) -> None:
    """Raises UsageError when the plan's stages are of a model with another number of layers."""
    if planned.stages and planned.stages[-1][1] != layers:
        raise UsageError(f"the plan is for {planned.stages[-1][1]} layers, the release has {layers}",
                         "give a plan for this release")


def planned_way(way: Way, planned: Planned, layers: int) -> Way:
    """The way with what the plan says: layout, stages, and what weights may take unless that is said otherwise.
    `layers`: of the release. Raises UsageError for a plan of another model."""
    check_stages(planned, layers)
    asked = way.device_memory or way.host_memory
    stages = planned.stages if planned.layout.pp > 1 and not way.partial else ()
    return replace(way, layout=planned.layout, stages=stages,
                   budgets=() if asked else planned.budgets(device=way.backend != HOST))


def placed(plan: str | None, layouts: Sequence[Layout], layers: int, backend: str
           ) -> tuple[tuple[tuple[int, int], ...], tuple[Budget, ...]]:
    """(stages, what the weights of each rank may take) as the plan at a path says; empty without one. `layers`: of the
    release; `backend`: that runs it, empty for the host. Raises UsageError as the functions above."""
    if plan is None:
        return (), ()
    planned = chosen_plan(read_plan(Path(plan)), layouts)
    check_stages(planned, layers)
    return planned.stages, planned.budgets(device=backend not in ("", HOST))
