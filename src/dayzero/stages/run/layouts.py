"""Which layouts to run, and whether anything can run here at all."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from dayzero.backends import backend_for
from dayzero.errors import NotPossible
from dayzero.runtime.mesh import refusal
from dayzero.runtime.seat import HOST, unusable
from dayzero.runtime.weights import check_weights
from dayzero.schema import Layout, Plan, Release, Target

from .decoding import dtype_of
from .limits import too_many_ranks

_MOST = 2
"""Layouts that are run when nobody names one."""


def backend_of(target: Target) -> str:
    """The backend of the target's devices. Raises NotPossible when this machine has none of them."""
    backend = backend_for(target.cluster.device)
    if backend is None:
        raise NotPossible(f"this machine has no {target.cluster.device.name}",
                          'take a target with device = "local", or name a --backend')
    return backend.name


def check_possible(release: Release, target: Target, backend: str = HOST) -> str:
    """dtype to run in: the release's own. Raises NotPossible when the release cannot run on this machine."""
    check_weights(release)
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise NotPossible(f"{' and '.join(missing)} not installed", "pip install 'dayzero[torch]'")
    cluster = target.cluster
    if cluster.nodes > 1:
        raise NotPossible(f"the target has {cluster.nodes} nodes", "take a target with one node: this machine")
    if reason := unusable(backend, Layout()):
        raise NotPossible(reason, "dayzero backend list: what can be used here")
    return dtype_of(release.model)


def choose(plan: Plan, target: Target, asked: Sequence[Layout], backend: str = HOST
           ) -> tuple[tuple[Layout, ...], dict[str, str]]:
    """(layouts to run, {layout: why it is not run}).

    Raises NotPossible when nothing is left, LayoutError when a layout that is asked for is larger than the cluster.
    """
    world = target.cluster.world_size
    wanted = tuple(dict.fromkeys(asked)) or target.layouts
    for layout in wanted:
        if layout.world_size > world:
            layout.check_world(world)
    fitting = tuple(each.layout for each in plan.candidates if each.fits and each.layout.world_size == world)
    skipped: dict[str, str] = {}
    chosen = []
    for layout in wanted or fitting:
        if reason := _illegal(plan, layout) or refusal(layout) or (
                too_many_ranks(layout)) or unusable(backend, layout):
            skipped[layout.text] = reason
        else:
            chosen.append(layout)
    if not chosen:
        reasons = "; ".join(f"{text}: {reason}" for text, reason in skipped.items())
        raise NotPossible(reasons or f"no layout of the plan fits on {world} devices",
                          "choose another layout with --layout, or another target")
    return tuple(chosen if wanted else chosen[:_MOST]), skipped


def planned_stages(plan: Plan, layout: Layout) -> tuple[tuple[int, int], ...]:
    """[first layer, end) of each stage, as the plan has them; empty when it has none for the layout."""
    return next((each.stages for each in plan.candidates if each.layout == layout), ()) if layout.pp > 1 else ()


def _illegal(plan: Plan, layout: Layout) -> str:
    """What the plan has against a layout; empty if nothing."""
    for rejected in plan.rejected:
        if rejected.layout == layout:
            return rejected.message
    return next(("it does not fit into memory" for each in plan.candidates
                 if each.layout == layout and not each.fits), "")
