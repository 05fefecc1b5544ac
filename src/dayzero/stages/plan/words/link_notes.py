"""How well the links of a cluster are known, in sentences; each only where it applies."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema import Cluster, Link

NOMINAL = "nominal only"
"""How a note begins that is a warning."""


def link_notes(cluster: Cluster) -> Iterator[str]:
    """Which links are only stated, where the others were measured, and what is hidden behind computing."""
    if cluster.device.measured or cluster.world_size == 1:
        return
    used = _used(cluster)
    stated = [link.name for link in used if not link.measured]
    if stated:
        yield (f"{NOMINAL}: bandwidth and latency of {' and '.join(stated)} are stated and were not measured on this "
               "cluster; `dayzero probe` does that, and plans then take what it files (docs/probe.md)")
    for source in dict.fromkeys(link.source for link in used if link.measured):
        yield f"links: {source}"
    if cluster.overlap:
        yield f"up to {cluster.overlap:.0%} of the sending is hidden behind computing, as the target states"


def _used(cluster: Cluster) -> list[Link]:
    """Links that join devices of this cluster."""
    inside = cluster.device.links if cluster.devices_per_node > 1 else ()
    between = (cluster.network, *cluster.beyond) if cluster.nodes > 1 and cluster.network else ()
    return [*inside, *between]
