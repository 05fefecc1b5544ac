"""What a plan keeps outside of the devices, as what each rank's weights may take. Without torch."""

from __future__ import annotations

from typing import Protocol

from dayzero.schema import Budget, Layout, Offload

from .mesh import Place

_WEIGHTS = "weights"


class Placed(Protocol):
    """What of a plan's candidate, or of a plan in a file, is needed."""

    @property
    def layout(self) -> Layout:
        """The degrees."""

    @property
    def bytes_per_stage(self) -> tuple[dict[str, int], ...]:
        """Bytes of one device of each stage by cause."""

    @property
    def offload(self) -> Offload | None:
        """What it keeps outside of the devices."""


def budgets(candidate: Placed, *, device: bool = False) -> tuple[Budget, ...]:
    """One for each rank, in order; empty when everything lies on the devices. `device`: whether the ranks compute on
    devices with memory of their own; else the host's memory takes the place of a device's, and everything that the plan
    keeps below stays in the files.

    A rank's weights get what the plan leaves on a device of its stage. Which of them stay is decided by the rank's
    tiers, in the order of a plan: single experts go first, then layers. Below a device the host may hold as much as the
    plan says for the fullest device.
    """
    if candidate.offload is None:
        return ()
    made = []
    for rank in range(candidate.layout.world_size):
        left = candidate.bytes_per_stage[Place(candidate.layout, rank).stage][_WEIGHTS]
        made.append(Budget(device=left, host=candidate.offload.host_bytes, weights=True) if device else
                    Budget(host=left, weights=True))
    return tuple(made)
