"""What a pipeline's stages send on: over which link each of them does, for many layouts with equally many stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts, shared
from dayzero.schema import Cluster, Layout, Link, ModelSpec

from .stage import Stages
from .traffic import residual
from .work import Step


@dataclass(frozen=True)
class Hop:
    """One link, or several after another."""

    latency: Value
    """Seconds of a small message."""
    pace: Value
    """Seconds for a byte over links that were not measured,"""
    reached: Value
    """and over measured ones."""

    def bytes(self, model: ModelSpec, layouts: Layouts, step: Step) -> Value:
        """What a rank sends in a step: its share of the residual stream."""
        return step.passes * residual(model, step) / layouts.tp


@dataclass(frozen=True)
class Hops:
    """The links from each stage to the next."""

    worst: Hop
    """For each kind of stage the slowest link behind one of them; shape [kinds, layouts]. Behind the last is none."""
    all: Hop
    """All after another; shape [layouts]."""


def hops(cluster: Cluster, layouts: Layouts, held: Stages) -> Hops:
    """The links of layouts whose stages are those of `held`."""
    behind = held.which[:-1]
    found = shared(lambda one: [boundary(one, cluster, stage) for stage in range(len(behind))], layouts)
    figures = np.array([[_figures(link) for link in links] for links in found.values])
    figures = figures.reshape(len(found.values), len(behind), 3)[found.which]  # layouts, stages, figures
    worst = np.zeros((len(held.ranges), len(layouts), 3))
    for kind in np.unique(behind):
        worst[kind] = figures[:, behind == kind].max(axis=1)
    total = figures.sum(axis=1)
    return Hops(worst=Hop(*np.moveaxis(worst, -1, 0)), all=Hop(*total.T))


def _figures(link: Link) -> tuple[float, float, float]:
    """Latency, seconds for a byte if it was not measured, and if it was; all ranks of a stage send at once."""
    reached = link.collectives.get("point_to_point")
    if reached is None:
        return link.latency, link.shared_by / link.bandwidth, 0.0
    return link.latency if reached.latency is None else reached.latency, 0.0, 1 / reached.bandwidth


def boundary(layout: Layout, cluster: Cluster, stage: int) -> Link:
    """The link between a stage and the next: the network where in any replica the stage ends a node, or where stages
    lie across the edges of nodes; else one inside a node."""
    node, tp = cluster.devices_per_node, layout.tp
    stages = node // tp  # in a node; the replicas' stages follow one another, and after so many replicas repeat
    crosses = node % tp > 0 or any((replica * layout.pp + stage + 1) % stages == 0
                                   for replica in range(min(layout.dp, stages)))
    if crosses and cluster.nodes > 1:
        return cluster.link(cluster.world_size)
    return cluster.link(node if node % (2 * tp) else 2 * tp)
