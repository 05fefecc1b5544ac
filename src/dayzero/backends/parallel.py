"""What of a layout runs on the devices of this machine, and what their links prefer."""

from __future__ import annotations

from dayzero.schema import Device, Layout

from .base import ParallelPlan


def planned(layout: Layout, described: Device | None, count: int, *, shared: bool, name: str, library: str, staged: bool
            ) -> ParallelPlan:
    """The plan for `count` devices. `shared`: several ranks may have one device."""
    ranks = layout.world_size
    reason = ""
    if not count:
        reason = f"backend {name} has no device here"
    elif ranks > count and not shared:
        reason = f"{ranks} ranks need as many devices, and backend {name} has {count}"
    devices = () if reason else tuple(rank % count for rank in range(ranks))
    return ParallelPlan(layout=layout, reason=reason, library=library, staged=staged, devices=devices,
                        tp=_joined(described, count))


def _joined(described: Device | None, count: int) -> int:
    """Devices of this machine that the fastest link joins."""
    if described is None or not described.links:
        return 0
    fastest = max(described.links, key=lambda link: link.bandwidth)
    return min(fastest.devices or count, count)
