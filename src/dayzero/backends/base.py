"""What a backend is: the way dayzero asks a kind of device what it is and how fast it is.

A plug-in is any object with these members, registered under the entry-point group `dayzero.backends`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dayzero.progress import SILENT, Progress
from dayzero.schema import Device


@runtime_checkable
class Backend(Protocol):
    """One kind of device on this machine. Nothing is imported or touched before a method is called."""

    name: str
    """Name that users write."""

    def available(self) -> str:
        """Why it cannot be used here, in one sentence; empty when it can."""

    def describe(self) -> dict[str, str]:
        """What there is, for people: each fact and its value as text. Empty when it is not available."""

    @property
    def device_count(self) -> int:
        """Devices that can each take at least one rank; 0 when it is not available."""

    def runs(self, device: Device) -> bool:
        """Whether a rank planned for the described device can really run on this machine."""

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """One rank's share of this machine when `ranks` processes work at the same time, measured now.

        Raises NotPossible when it cannot be measured here, StageError when a measuring process fails.
        """


@runtime_checkable
class ListsOperators(Protocol):
    """What a backend may have besides: a list of its own, which outweighs what torch says about it."""

    def operators(self) -> Mapping[str, tuple[str, ...]]:
        """Operators, such as aten.mm, that the device computes -> for which dtypes of their first tensor, such as bf16;
        none: all. One that is not in the list is looked up in torch's registrations."""
