"""Which layouts to run, and whether anything can run here at all."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from dayzero.backends import backend_for
from dayzero.errors import NotPossible
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.mesh import refusal
from dayzero.schema import Layout, Plan, Release, Target

from .limits import too_many_ranks

_MOST = 2
"""Layouts that are run when nobody names one."""
_HOST = "cpu"


def check_possible(release: Release, target: Target) -> str:
    """dtype to run in: the release's own. Raises NotPossible when the release cannot run on this machine."""
    if not release.has_weights or release.root is None:
        raise NotPossible("no weights: the release has names and shapes only", "get the weights of the release")
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise NotPossible(f"{' and '.join(missing)} not installed", "pip install 'dayzero[torch]'")
    cluster = target.cluster
    if cluster.nodes > 1:
        raise NotPossible(f"the target has {cluster.nodes} nodes", "take a target with one node: this machine")
    backend = backend_for(cluster.device)
    if backend is None:
        raise NotPossible(f"this machine has no {cluster.device.name}", 'take a target with device = "local"')
    if backend.name != _HOST:
        raise NotPossible(f"the reference runtime does not run on {backend.name} devices yet",
                          'take a target with device = "local"')
    schemes = {family.scheme for family in release.model.families if family.parameters}
    if odd := sorted(schemes - set(DTYPES)):
        raise NotPossible(f"the weights are stored as {', '.join(odd)}; the reference runtime runs "
                          f"{', '.join(DTYPES)}", "take a release in one of these")
    return release.model.dtype


def choose(plan: Plan, target: Target, asked: Sequence[Layout]) -> tuple[tuple[Layout, ...], dict[str, str]]:
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
        if reason := _illegal(plan, layout) or refusal(layout) or too_many_ranks(layout):
            skipped[layout.text] = reason
        else:
            chosen.append(layout)
    if not chosen:
        reasons = "; ".join(f"{text}: {reason}" for text, reason in skipped.items())
        raise NotPossible(reasons or f"no layout of the plan fits on {world} devices",
                          "choose another layout with --layout, or another target")
    return tuple(chosen if wanted else chosen[:_MOST]), skipped


def _illegal(plan: Plan, layout: Layout) -> str:
    """What the plan has against a layout; empty if nothing."""
    for rejected in plan.rejected:
        if rejected.layout == layout:
            return rejected.message
    return next(("it does not fit into memory" for each in plan.candidates
                 if each.layout == layout and not each.fits), "")
