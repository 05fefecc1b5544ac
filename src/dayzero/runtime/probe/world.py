"""The process group of one rank of a probe, and what its ranks agree on. Needs torch."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dayzero.errors import UsageError

from .found import Wish

_TIMEOUT = timedelta(seconds=60)
_HOST = "gloo"
"""The backend that carries tensors in the host's memory."""


def accelerator() -> torch.device | None:
    """The kind of accelerator that torch can use here; None: there is none."""
    return torch.accelerator.current_accelerator(check_available=True)


def carrier(wish: Wish) -> str:
    """The backend for collectives. Raises UsageError for one that this torch does not have."""
    here = accelerator()
    name = wish.backend or (dist.get_default_backend_for_device(here.type) if here else _HOST)
    if not dist.is_backend_available(name):
        usual = dict.fromkeys(dist.Backend.default_device_backend_map.values())
        known = [each for each in usual if dist.is_backend_available(each)]
        raise UsageError(f"this torch has no backend {name!r}", f"it has: {', '.join(known)}")
    if name != _HOST and here is None:
        raise UsageError(f"backend {name!r} carries an accelerator's memory, and torch finds none here",
                         f"leave --backend out, or write --backend {_HOST}")
    return name


class World:
    """The ranks. `device`: this rank's; `memory`: where the tensors of collectives are."""

    def __init__(self, wish: Wish, rank: int, ranks: int, method: str) -> None:
        self.rank, self.ranks, self.backend = rank, ranks, carrier(wish)
        kind = accelerator()
        local = int(os.environ.get("LOCAL_RANK", rank))
        self.device = torch.device(kind.type, local % torch.accelerator.device_count()) if kind else torch.device("cpu")
        if kind:
            torch.accelerator.set_device_index(self.device.index)
        self.memory = torch.device("cpu") if self.backend == _HOST else self.device
        both = _HOST if self.backend == _HOST else f"cpu:{_HOST},{self.device.type}:{self.backend}"
        dist.init_process_group(both, init_method=method, rank=rank, world_size=ranks, timeout=_TIMEOUT)

    def meet(self) -> None:
        """Wait until all ranks are here."""
        dist.all_reduce(torch.zeros(1))

    def most(self, value: float) -> float:
        """The largest of all ranks' values."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return float(shared)

    def told(self, value: Any) -> list[Any]:
        """All ranks' values, in order."""
        gathered: list[Any] = [None] * self.ranks
        dist.all_gather_object(gathered, value)
        return gathered

    def hosts(self) -> list[str]:
        """The host of each rank; two of the same name are told apart by their start."""
        started = Path("/proc/sys/kernel/random/boot_id")
        return self.told(f"{socket.gethostname()} {started.read_text().strip() if started.exists() else ''}")

    def leave(self) -> None:
        """Take the group down."""
        dist.destroy_process_group()
