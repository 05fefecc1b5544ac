"""What a pipeline's stages send on: over which link each of them does, for many layouts."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from dayzero.arrays import Value
from dayzero.placement.many import Layouts, shared
from dayzero.schema import Cluster, Layout, Link, ModelSpec

from .stage import Rows
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
    """For each row the slowest link behind one of its stages. Behind the last stage is none."""
    all: Hop
    """For each layout all after another."""


def hops(cluster: Cluster, layouts: Layouts, held: Rows) -> Hops:
    """The links of layouts whose stages are those of `held`."""
    found = shared(lambda one: _behind(one, cluster, held.pipelines[one.pp]), layouts)
    table = np.zeros((len(found.values), 2 + int(held.kind.max(initial=0)), 3))
    for place, figures in enumerate(found.values):
        table[place, :len(figures)] = figures
    every, worst = table[found.which, 0], table[found.which[held.owner], 1 + held.kind]
    return Hops(worst=Hop(*worst.T), all=Hop(*every.T))


def _behind(layout: Layout, cluster: Cluster, kinds: Value) -> Value:
    """Figures of all links of a pipeline together, then of the slowest behind each kind of stage."""
    links = np.array([_figures(boundary(layout, cluster, stage)) for stage in range(len(kinds) - 1)]).reshape(-1, 3)
    slowest = [links[kinds[:-1] == kind].max(axis=0, initial=0.0) for kind in range(int(kinds.max()) + 1)]
    return np.array([links.sum(axis=0), *slowest])


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
    if cluster.nodes > 1 and (node % tp > 0 or _ends(layout.pp, layout.dp, node // tp, stage)):
        return cluster.link(cluster.world_size)
    return cluster.link(node if node % (2 * tp) else 2 * tp)


def _ends(pp: int, dp: int, stages: int, stage: int) -> bool:
    """Whether the stage is the last one of a node in any replica: the replicas' stages follow one another, and a node
    has so many. Replica r is one where stages divides r pp + stage + 1, and the first such r is the residue of
    -(stage + 1) / pp."""
    common = gcd(pp, stages)
    if (stage + 1) % common:
        return False
    rest = stages // common
    return -(stage + 1) // common * pow(pp // common, -1, rest) % rest < dp
