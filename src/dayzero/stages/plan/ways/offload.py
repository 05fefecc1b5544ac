"""Weights and cache that do not fit, kept in the host's memory or on disk and sent over for every pass.

    seconds of a pass >= bytes that it needs from the host / host bandwidth + bytes from disk / disk bandwidth

Routed experts go first, since a pass needs only those that its tokens visit; then other weights, then the cache, of
which a pass needs all. Nothing overlaps, as everywhere in a plan, so the time is added to that of the pass. Every
argument may hold one value for each of many layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from dayzero.schema import Device

Values = np.ndarray[Any, np.dtype[np.float64]]
"""One for each layout."""
STEP = 0.05
"""Shares are multiples of it."""
CAUSES = ("experts", "weights", "cache")
"""What can be moved, in the order in which it is."""


@dataclass(frozen=True)
class Held:
    """What one device would hold of what can be moved; bytes."""

    experts: Values
    """Routed experts."""
    weights: Values
    """Other weights."""
    cache: Values
    """Caches of the sequences that are served together."""
    visited: Values
    """Share of the experts that a pass needs."""


@dataclass(frozen=True)
class Offloaded:
    """What is moved, and what that costs."""

    shares: dict[str, Values]
    """Of each of CAUSES, from 0 to 1."""
    host_bytes: Values
    """In the host's memory, for one device."""
    disk_bytes: Values
    """On disk, for one device."""
    needed_bytes: Values
    """That a pass needs of both."""
    bound_s: Values
    """Least seconds of a pass; inf where what is lacking cannot be moved."""

    @property
    def possible(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether everything has a place and a way."""
        return np.isfinite(self.bound_s)


def offload(lacking: Values, held: Held, device: Device) -> Offloaded:
    """What to move so that `lacking` bytes become free on each device (0 or less: nothing)."""
    left = np.maximum(np.asarray(lacking, dtype=np.float64), 0.0)
    shares, moved, needed = {}, np.zeros_like(left), np.zeros_like(left)
    for cause in CAUSES:
        size = np.maximum(np.asarray(getattr(held, cause), dtype=np.float64), 0.0)
        share = np.minimum(np.ceil(left / np.maximum(size, 1.0) / STEP * (1 - 1e-9)) * STEP, 1.0)
        share = np.where(size > 0, share, 0.0)
        shares[cause] = share
        moved += share * size
        needed += share * size * (held.visited if cause == "experts" else 1.0)
        left = np.where(left <= share * size * (1 + 1e-8), 0.0, left - share * size)
    host = np.minimum(moved, inf if device.host_memory_bytes is None else device.host_memory_bytes)
    disk = moved - host
    part = needed / np.maximum(moved, 1.0)
    bound = _seconds(host * part, device.host_bandwidth) + _seconds(disk * part, device.disk_bandwidth)
    return Offloaded(shares=shares, host_bytes=host, disk_bytes=disk, needed_bytes=needed,
                     bound_s=np.where(left > 0, inf, bound))


def _seconds(needed: Values, bandwidth: float | None) -> Values:
    """Of so many bytes; inf for any over a way that is not known."""
    if bandwidth is None:
        return np.where(needed > 0, inf, 0.0)
    return needed / bandwidth
