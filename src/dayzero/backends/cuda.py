"""CUDA devices of this machine, as torch sees them. Also answers for other devices that torch drives by that name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from dayzero.schema import Device
from dayzero.units import format_bytes

from .torch_backend import ATTENTION, TorchBackend

_SAME_MEMORY = 0.1
"""Share by which the memory that the driver reports may differ from the described one: some of it is reserved."""


class CudaBackend(TorchBackend):
    """Collectives by the library that torch has for it; all else as for every accelerator of torch."""

    name = device_type = "cuda"
    library, staged = "nccl", False

    def available(self) -> str:
        """Why it cannot be used here; empty when it can."""
        if find_spec("torch") is None:
            return "torch is not installed"
        import torch

        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            return f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device"
        return ""

    @property
    def device_count(self) -> int:
        """CUDA devices that torch sees."""
        return len(self._properties())

    def describe(self) -> dict[str, str]:
        """Name, architecture and memory of each device."""
        return {f"device {index}": f"{each.name}, {_arch(each)}, {format_bytes(each.total_memory)}"
                for index, each in enumerate(self._properties())}

    def runs(self, device: Device) -> bool:
        """Whether a device of the described architecture and about that much memory is here."""
        return any(_arch(each) == device.arch
                   and abs(each.total_memory - device.memory_bytes) <= _SAME_MEMORY * device.memory_bytes
                   for each in self._properties())

    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Torch has a flash kernel for them."""
        return {**super().choices(), "attention": (*ATTENTION, "flash")}

    def _properties(self) -> list[Any]:
        if self.available():
            return []
        import torch

        return [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]


def _arch(properties: Any) -> str:
    """Compiler's name of the architecture: sm_90, or gfx942 in a HIP build, where feature suffixes follow a colon."""
    import torch

    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


BACKEND = CudaBackend()
