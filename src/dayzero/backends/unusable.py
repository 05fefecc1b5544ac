"""What stands in the place of a package's backend that cannot be used: it says why, and can do nothing."""

from __future__ import annotations

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.schema import Device

from .torch_backend import TorchBackend


class Unusable(TorchBackend):
    """Implements `Backend`."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = self.device_type = name
        self.reason = reason

    def available(self) -> str:
        """The reason."""
        return self.reason

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """Raises NotPossible."""
        raise NotPossible(f"backend {self.name}: {self.reason}", "update or remove the package that brings it")
