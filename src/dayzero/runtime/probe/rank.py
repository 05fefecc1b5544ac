"""What one rank of a probe does. Needs torch."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import torch

from dayzero.backends import host

from .disk import disk_reads
from .figures import measure_figures
from .found import Found, Wish
from .levels import domains, on_host, stated
from .links import measure_levels, measure_pairs
from .world import World

_SHARES = {"levels": 0.6, "figures": 0.4}
"""Of the seconds that measuring may take; pairs and the disk are short."""


def measure(wish: Wish, rank: int, ranks: int, method: str) -> Found:
    """Everything that this rank takes part in; `method`: how the ranks meet. Raises UsageError for a backend that is
    not there and for hosts of unlike numbers of ranks, RuntimeError when another rank is lost."""
    world = World(wish, rank, ranks, method)
    try:
        return _measure(world, wish)
    finally:
        world.leave()


def measure_joined(wish: Wish, rank: int, ranks: int) -> list[Found]:
    """What all ranks that a launcher started found. Raises as `measure`."""
    world = World(wish, rank, ranks, "env://")
    try:
        return world.told(_measure(world, wish))
    finally:
        world.leave()


def _measure(world: World, wish: Wish) -> Found:
    rank, ranks = world.rank, world.ranks
    with torch.inference_mode():
        hosts = world.hosts()
        here = on_host(hosts)
        found = stated(wish.domains, ranks) or domains(ranks, here, measure_pairs(world, here))
        calls, missing = measure_levels(world, found, wish.seconds * _SHARES["levels"]) if found else ([], {})
        figures, without = measure_figures(world, wish.seconds * _SHARES["figures"])
        reads, unread = disk_reads(Path(wish.disk or tempfile.gettempdir())) if hosts.index(hosts[rank]) == rank else (
            {}, {})
    return Found(host=hosts[rank], device=_name(world.device), backend=world.backend, domains=found, calls=calls,
                 figures={**figures, **reads}, missing={**missing, **without, **unread},
                 environment=_environment(world))


def _name(device: torch.device) -> str:
    """What the driver calls it; empty: the host's processor."""
    if device.type == "cpu":
        return ""
    return str(torch.get_device_module(device.type).get_device_name(device.index))


def _environment(world: World) -> dict[str, str]:
    """What figures depend on: versions, processor, settings of the backend."""
    prefix = f"{world.backend.upper()}_"
    return {"torch": str(torch.__version__), "python": platform.python_version(), "system": platform.platform(),
            "processor": " ".join(host.identity()).strip(), "cores": str(host.cores()),
            **{name: value for name, value in sorted(os.environ.items()) if name.startswith(prefix)}}
