"""Which devices a group of training ranks lies on, and how many bytes a second each rank gets in it."""

from __future__ import annotations

from typing import NamedTuple

from dayzero.schema import Cluster


class Group(NamedTuple):
    """Ranks of one collective."""

    ranks: int
    """How many."""
    inside: int
    """Of them in one node."""

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.ranks // self.inside)


def group(ranks: int, stride: int, cluster: Cluster) -> Group:
    """The group of every `stride`-th rank. Groups whose span does not fit into a node have as many ranks in each as
    lie in one."""
    inside = max(1, cluster.devices_per_node // stride)
    while ranks % inside and inside > 1:
        inside -= 1
    return Group(ranks, min(ranks, inside))


def local_rate(cluster: Cluster) -> float:
    """Bytes a second of one device to the others in its node."""
    links = cluster.device.links
    return links[-1].bandwidth if links else cluster.link(min(2, cluster.devices_per_node)).bandwidth


def outer_rate(cluster: Cluster) -> float:
    """Bytes a second of one device to other nodes."""
    return cluster.network.bandwidth if cluster.network else cluster.link(cluster.world_size).bandwidth


def ring(sent: float, members: Group, cluster: Cluster) -> tuple[float, float]:
    """(seconds on links inside nodes, seconds on the network) at stated rates of a ring in which every rank sends
    `sent` bytes: where it leaves nodes, all ranks of a node share their ports."""
    if members.ranks == 1:
        return 0.0, 0.0
    if members.nodes == 1:
        return sent / local_rate(cluster), 0.0
    return 0.0, sent / min(local_rate(cluster), outer_rate(cluster) * members.inside)


def all_to_all(row_bytes: float, visits: float, members: Group, cluster: Cluster) -> tuple[float, float]:
    """(seconds inside nodes, seconds on the network) of sending rows of `row_bytes` in all to `visits` of the ranks
    each, chosen evenly: a row goes once to each node, and in it once to each rank."""
    if members.ranks == 1:
        return 0.0, 0.0
    reached = members.ranks * (1 - (1 - 1 / members.ranks) ** visits)
    nodes = members.nodes * (1 - (1 - 1 / members.nodes) ** visits)
    within = row_bytes * reached * (members.ranks - 1) / members.ranks / local_rate(cluster)
    if members.nodes == 1:
        return within, 0.0
    return within, row_bytes * nodes * (members.nodes - 1) / members.nodes / outer_rate(cluster)
