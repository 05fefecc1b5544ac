"""Which devices a group of training ranks lies on, and how many bytes a second each rank gets in it. Ranks, strides and
bytes are numbers, or arrays of one length. Where collectives were measured on a link, what they reached is its rate."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec
import numpy as np

from dayzero.arrays import Value, choose, largest, smallest
from dayzero.data.training import Reached
from dayzero.schema import Cluster, Link


class Group(NamedTuple):
    """Ranks of one collective."""

    ranks: Value
    """How many."""
    inside: Value
    """Of them in one node."""

    @property
    def nodes(self) -> Value:
        """Nodes that the group spans."""
        return -(-self.ranks // self.inside)


def group(ranks: Value, stride: Value, cluster: Cluster) -> Group:
    """The group of every `stride`-th rank. Groups whose span does not fit into a node have as many ranks in each as
    lie in one, and divide them."""
    inside = largest(1, cluster.devices_per_node // stride)
    return Group(ranks, smallest(ranks, _divisor(ranks, inside)))


def _divisor(ranks: Value, most: Value) -> Value:
    """The largest divisor of `ranks` up to `most`."""
    if not isinstance(ranks, np.ndarray) and not isinstance(most, np.ndarray):
        return next(size for size in range(int(most), 0, -1) if ranks % size == 0)
    found, ranks = 1 + 0 * most, 0 * most + ranks
    for size in range(2, int(np.max(most, initial=1)) + 1):
        found = np.where((ranks % size == 0) & (size <= most), size, found)
    return found


def local_rate(cluster: Cluster, collective: str = "all_reduce") -> float:
    """Bytes a second of one device to the others in its node; without end where there are none."""
    if cluster.devices_per_node == 1:
        return inf
    links = cluster.device.links
    return _rate(links[-1] if links else cluster.link(min(2, cluster.devices_per_node)), collective)


def outer_rate(cluster: Cluster, collective: str = "all_reduce") -> float:
    """Bytes a second of one device to other nodes while all devices of its node send; without end where there are
    none."""
    if cluster.nodes == 1:
        return inf
    return _rate(cluster.network or cluster.link(cluster.world_size), collective)


def _rate(link: Link, collective: str) -> float:
    known = link.collectives.get(collective) or link.collectives.get("all_reduce")
    return known.bandwidth if known else link.bandwidth / link.shared_by


def over(reached: Reached, cluster: Cluster) -> Reached:
    """The shares on a cluster: of links on which collectives were measured nothing is left to lose, only to hide."""
    inside = bool(cluster.device.links) and cluster.device.links[-1].measured
    names = [*(("inside", "dispatch") if inside else ()),
             *(("network", "dispatch_network") if cluster.network and cluster.network.measured else ())]
    return msgspec.structs.replace(reached, **{name: max(1.0, getattr(reached, name)) for name in names})


def ring(sent: Value, members: Group, cluster: Cluster) -> tuple[Value, Value]:
    """(seconds on links inside nodes, seconds on the network) at stated rates of a ring in which every rank sends
    `sent` bytes: where it leaves nodes, all ranks of a node share their ports."""
    inside, near = local_rate(cluster), members.nodes == 1
    within = choose(members.ranks == 1, 0.0, choose(near, sent / inside, 0.0))
    across = sent / smallest(inside, outer_rate(cluster) * members.inside)
    return within, choose(near, 0.0, across)


def all_to_all(row_bytes: Value, visits: float, members: Group, cluster: Cluster) -> tuple[Value, Value]:
    """(seconds inside nodes, seconds on the network) of sending rows of `row_bytes` in all to `visits` of the ranks
    each, chosen evenly: a row goes once to each node, and in it once to each rank."""
    reached = members.ranks * (1 - (1 - 1 / members.ranks) ** visits)
    within = row_bytes * reached * (members.ranks - 1) / members.ranks / local_rate(cluster, "all_to_all")
    nodes = members.nodes * (1 - (1 - 1 / members.nodes) ** visits)
    return within, row_bytes * nodes * (members.nodes - 1) / members.nodes / outer_rate(cluster, "all_to_all")
