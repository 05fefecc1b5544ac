"""The smallest cluster of a target's devices on which the model works: the first size that fits, and the first that
keeps to the limits. Sizes rise: single devices of one node, then whole nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from dayzero.schema import Cluster, Layout, Size, Target

from .limits import stated

Works = Literal["fits", "within limits"]
MOST_DEVICES = 1024
"""Largest cluster that is looked at."""


class Found(NamedTuple):
    """The best layout on one cluster."""

    layout: Layout
    """The degrees."""
    over: float
    """The largest of figure / limit: at most 1 where it keeps to all limits."""
    figures: dict[str, float]
    """tpot_s, ttft_s and tokens_per_s, or step_s and tokens_per_s."""


def sizes(cluster: Cluster, most: int = MOST_DEVICES) -> Iterator[Cluster]:
    """The cluster with 1, 2, 3 ... devices of one node, then with 2, 3, 4, 6, 8, 12 ... nodes: powers of two and half
    again as many. Only one node where the network between nodes is not stated."""
    node = cluster.devices_per_node
    for devices in range(1, min(node, most) + 1):
        yield msgspec.structs.replace(cluster, nodes=1, devices_per_node=devices)
    nodes = 2
    while cluster.network is not None and nodes * node <= most:
        yield msgspec.structs.replace(cluster, nodes=nodes)
        nodes = nodes * 3 // 2 if nodes & (nodes - 1) == 0 else nodes // 3 * 4


def smallest(target: Target, best: Callable[[Target], Found | None]) -> tuple[Size, ...]:
    """The first size on which a layout fits and, where the target has limits, the first on which one keeps to them.
    `best` gives the best layout that fits on a target; None: none does. A size that was not found says why."""
    limited = bool(stated(target.limits))
    most = min(MOST_DEVICES, target.limits.devices or MOST_DEVICES)
    fits: Size | None = None
    nearest: tuple[Cluster, Found] | None = None
    last = target.cluster
    for last in sizes(target.cluster, most):
        found = best(msgspec.structs.replace(target, cluster=last, layouts=()))
        if found is None:
            continue
        fits = fits or _size("fits", last, found)
        if found.over <= 1:
            return (fits, _size("within limits", last, found)) if limited else (fits,)
        nearest = min(nearest or (last, found), (last, found), key=lambda pair: pair[1].over)
    return (fits or _none("fits", last), *([_none("within limits", last, nearest)] if limited else []))


def _size(works: Works, cluster: Cluster, found: Found) -> Size:
    return Size(works=works, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node, layout=found.layout,
                figures=found.figures)


def _none(works: Works, cluster: Cluster, nearest: tuple[Cluster, Found] | None = None) -> Size:
    near = (f"; {nearest[1].layout.text} on {nearest[0].world_size} comes nearest, {nearest[1].over - 1:.0%} over"
            if nearest else "")
    beyond = "" if cluster.network is not None else "; the network that would join more nodes is not stated"
    return Size(works=works, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node, layout=None, figures={},
                reason=f"of up to {cluster.world_size} devices{near}{beyond}")
