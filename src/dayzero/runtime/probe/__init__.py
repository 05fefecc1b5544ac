"""Measure the links, devices and hosts of a cluster with torch.distributed, in processes of our own or under torchrun.

`levels` tells domains apart by pairs, `links` times collectives level by level, `figures` and `disk` the rest, `fit`
and `compose` make a topology of it, which `data.topologies` files.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

from dayzero.backends import host
from dayzero.backends.together import together
from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import to_json
from dayzero.schema.store import write_atomic
from dayzero.schema.topology import Topology

from .compose import compose
from .found import Found, Wish
from .levels import stated

__all__ = ["Wish", "joined", "probe", "probe_joined"]

_MODULE = "dayzero.runtime.probe.process"
_START = 60.0
"""Seconds that importing torch and everything that is not timed may take, beside ten times the seconds of the wish."""
_JOINED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def joined() -> bool:
    """Whether a launcher (torchrun) started this process as one of several ranks."""
    return all(os.environ.get(name) for name in _JOINED)


def probe(wish: Wish, ranks: int | None, network: str = "", progress: Progress = SILENT) -> Topology:
    """The topology of this machine: as many processes as `ranks`; None: one for each accelerator, or for each core.

    Raises NotPossible without torch, UsageError for ranks or a backend that this machine does not have, StageError when
    a process dies or does not end.
    """
    _needs_torch()
    from .world import accelerator, carrier

    carrier(wish)
    count, what = _places(accelerator() is not None)
    ranks = ranks or count
    if ranks > count:
        raise UsageError(f"{ranks} ranks on {count} {what}: they would take turns, and what is measured would be that",
                         f"write --ranks {count} or fewer")
    stated(wish.domains, ranks)
    start = time.monotonic()
    found = together(_MODULE, ranks, max(1, host.cores() // ranks), Found, progress,
                     deadline=_START + 10 * wish.seconds,
                     prepare=lambda folder: write_atomic(folder / "wish.json", to_json(wish)))
    return compose(found, network, time.monotonic() - start)


def probe_joined(wish: Wish, network: str = "") -> Topology | None:
    """The topology of all ranks that the launcher started; None on all ranks but the first. Raises as `probe`, and
    UsageError for an environment that is no launcher's."""
    _needs_torch()
    from .rank import measure_joined

    rank, ranks = _place()
    start = time.monotonic()
    try:
        found = measure_joined(wish, rank, ranks)
    except RuntimeError as error:
        raise StageError(f"rank {rank} of {ranks} cannot go on measuring: {str(error).splitlines()[0]}",
                         "another rank may have ended: look at the first error of all ranks") from None
    return compose(found, network, time.monotonic() - start) if rank == 0 else None


def _place() -> tuple[int, int]:
    """(rank, ranks) as the launcher says. Raises UsageError when what it says is no place among ranks."""
    said = {name: os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    numbers = [int(text) if text.isdecimal() else -1 for text in said.values()]
    rank, ranks, local, port = numbers
    if not (0 <= rank < ranks and local >= 0 and 0 < port < 65536):
        raise UsageError(f"{', '.join(f'{name}={text}' for name, text in said.items())} are no place among ranks",
                         "start the ranks with torchrun, or remove these variables from the environment")
    return rank, ranks


def _needs_torch() -> None:
    if find_spec("torch") is None:
        raise NotPossible("nothing can be measured: torch is not installed", "pip install 'dayzero[torch]'")


def _places(accelerated: bool) -> tuple[int, str]:
    """(ranks that this machine has room for, what each of them has)."""
    if accelerated:
        import torch

        return torch.accelerator.device_count(), "devices"
    return host.cores(), "cores"
