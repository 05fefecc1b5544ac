"""The simulated accelerator as a backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from dayzero.backends.base import Known
from dayzero.backends.torch_backend import TorchBackend
from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.schema import Device
from dayzero.units import format_bytes

from . import build
from .settings import Settings, operators_of, settings

if TYPE_CHECKING:
    import torch


class SimulatedBackend(TorchBackend):
    """Implements `Backend`. Ranks are processes, and each has devices of its own: nothing is shared."""

    name = device_type = "simulated"
    library, staged = "gloo", True

    def __init__(self) -> None:
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """What was set when it was first used. Raises UsageError."""
        if self._settings is None:
            self._settings = settings()
        return self._settings

    def available(self) -> str:
        """What is missing to build it; empty when it can be, or is."""
        return build.lacking()

    @property
    def device_count(self) -> int:
        """As set; of each process."""
        return 0 if self.available() else self.settings.devices

    def describe(self) -> dict[str, str]:
        """Its settings."""
        if self.available():
            return {}
        return {"devices": f"{self.settings.devices}, in the host's memory",
                "memory of each": format_bytes(self.settings.memory),
                "denied operators": ", ".join(self.settings.denied) or "none",
                "what it lacks": "runs on the host, with a warning" if self.settings.fallback else "raises"}

    def runs(self, device: Device) -> bool:
        """Whether the device was described by `measure`."""
        return (device.name, device.arch) == (self.name, self.name)

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """The rates of this host's processor, which computes for it, and the memory that is set."""
        from dayzero.backends.cpu import BACKEND as HOST

        if reason := self.available():
            raise NotPossible(reason, "dayzero backend list: what can be used")
        measured = HOST.measure(ranks, progress)
        return msgspec.structs.replace(
            measured, name=self.name, arch=self.name, memory_bytes=self.settings.memory,
            sources={**measured.sources, "memory_bytes": "set for the simulated accelerator"})

    def device(self, index: int = 0) -> torch.device:
        """See `Backend`; the first call builds and loads it."""
        self.extension()
        return super().device(index)

    def extension(self) -> Any:
        """The extension's functions, loaded. Raises NotPossible."""
        if reason := self.available():
            raise NotPossible(f"the simulated accelerator cannot be built: {reason}",
                              "install a C++ compiler and ninja, such as the packages g++ and ninja-build")
        from .extension import load

        return load(self.settings)

    def supported(self, op: str, dtype: str, tensors: int | None = None) -> Known:
        """By torch's registrations, without what is denied."""
        self.extension()
        wanted = self.settings.denied
        if op in wanted or f"{op}/{dtype}" in wanted:
            return Known(status="fallback" if self.settings.fallback else "none", how="denied by its settings")
        known = super().supported(op, dtype, tensors)
        if known.status == "fallback" and not self.settings.fallback:
            return msgspec.structs.replace(known, status="none")
        return known

    @contextlib.contextmanager
    def denying(self, operators: Iterable[str], *, fallback: bool = True) -> Iterator[None]:
        """Inside of it the devices of this process lack these operators too. Raises UsageError for what is none."""
        from .extension import deny

        extension, before = self.extension(), self.settings
        more = operators_of(",".join(operators))
        deny((*before.denied, *more))
        extension.fall_back(fallback)
        self._settings = msgspec.structs.replace(before, denied=(*before.denied, *more), fallback=fallback)
        try:
            yield
        finally:
            self._settings = before
            deny(before.denied)
            extension.fall_back(before.fallback)

    def calls(self) -> tuple[dict[str, int], dict[str, int]]:
        """Calls of each operator, as torch writes it, since the start or `forget`: (on the device, on the host)."""
        extension = self.extension()
        return dict(extension.calls(True)), dict(extension.calls(False))

    def forget(self) -> None:
        """Count anew, and warn anew."""
        self.extension().forget()


BACKEND = SimulatedBackend()
