"""Which device a rank computes on, and how ranks there reach each other. Torch is imported when a seat is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dayzero.backends import Backend, backends
from dayzero.errors import NotPossible
from dayzero.schema import Layout

if TYPE_CHECKING:
    import torch

HOST = "cpu"
"""The backend whose devices have no memory of their own."""
_HINT = "dayzero backend list: what can be used here"


@dataclass(frozen=True)
class Seat:
    """One rank's."""

    backend: Backend
    index: int
    """Of the device."""
    device: torch.device
    library: str
    """Backend of torch.distributed for its tensors, and for those of the host."""
    staged: bool
    """Whether that library does not take the device's tensors."""

    @property
    def free(self) -> int:
        """Bytes that can still be allocated on it."""
        return self.backend.memory(self.index).free()


def unusable(name: str, layout: Layout) -> str:
    """Why a layout cannot be run on a backend here; empty when it can. Raises UsageError for a name that is none."""
    backend = backends().get(name)
    if reason := backend.available():
        return f"backend {name} cannot be used here: {reason}"
    return backend.parallel_plan(layout).reason


def take_seat(name: str, layout: Layout, rank: int) -> Seat:
    """The rank's device, ready for use and the one that torch takes when nobody names one. Raises NotPossible."""
    import torch

    if reason := unusable(name, layout):
        raise NotPossible(reason, _HINT)
    backend = backends().get(name)
    plan = backend.parallel_plan(layout)
    device = backend.device(plan.devices[rank])
    if device.type != HOST and device.index is not None:
        torch.accelerator.set_device_index(device.index)
    own = plan.library == "gloo" or device.type == HOST
    library = plan.library if own else f"{HOST}:gloo,{device.type}:{plan.library}"
    return Seat(backend, plan.devices[rank], device, library, plan.staged)
