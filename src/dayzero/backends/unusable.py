"""What stands in the place of a package's backend that cannot be used: it says why, and can do nothing."""

from __future__ import annotations

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.schema import Device


class Unusable:
    """Implements `Backend`."""

    device_count = 0

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason

    def available(self) -> str:
        """The reason."""
        return self.reason

    def describe(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def runs(self, device: Device) -> bool:
        """Never."""
        return False

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """Raises NotPossible."""
        raise NotPossible(f"backend {self.name}: {self.reason}", "update or remove the package that brings it")
