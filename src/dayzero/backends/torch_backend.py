"""The base of backends whose devices torch drives: everything that torch can say and do, for any device type.

A plug-in's class needs a name, a device type, and what only its maker knows: `runs`, `measure`, and perhaps a
collective library and more choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Device, Layout

from .base import Chosen, Known, ListsOperators, Memory, ParallelPlan, Stream
from .optimizations import check, optimizations
from .parallel import planned

if TYPE_CHECKING:
    import torch

    from .collectives import Collectives

ATTENTION, NORM, CACHE = ("eager", "sdpa"), ("plain", "fused"), ("dynamic", "paged")
"""What every device that torch drives can do."""
LINEAR = ("library", "onednn")
"""On the host."""


class TorchBackend:
    """Implements `Backend`."""

    name = ""
    device_type = ""
    library = "gloo"
    """Backend of torch.distributed for its ranks."""
    staged = True
    """Whether that library does not take the device's tensors."""

    def available(self) -> str:
        """Why torch cannot use such a device here; empty when it can."""
        if find_spec("torch") is None:
            return "torch is not installed"
        from .dispatch import has_device

        return "" if has_device(self.device_type) else f"torch finds no device of type {self.device_type}"

    def is_available(self) -> bool:
        """Whether it can be used here."""
        return not self.available()

    def describe(self) -> dict[str, str]:
        """Device type and number of devices."""
        return {"device type": self.device_type, "devices": str(self.device_count)} if self.is_available() else {}

    @property
    def device_count(self) -> int:
        """As the device type's module of torch counts."""
        if not self.is_available():
            return 0
        import torch

        return int(torch.get_device_module(self.device_type).device_count())

    def runs(self, device: Device) -> bool:
        """Never: a plug-in knows better which described devices its are."""
        return False

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """Raises NotPossible."""
        raise NotPossible(self.available() or f"{self.name} devices are not measured yet",
                          "name a shipped device in [cluster], or state its figures in an inline table")

    def device(self, index: int = 0) -> torch.device:
        """See `Backend`."""
        if reason := self.available():
            raise NotPossible(f"backend {self.name} cannot be used here: {reason}",
                              "dayzero backend list: what can be used")
        import torch

        if not 0 <= index < self.device_count:
            raise UsageError(f"backend {self.name} has no device {index}", f"0 to {self.device_count - 1}")
        return torch.device(self.device_type, index)

    def memory(self, index: int = 0) -> Memory:
        """See `Backend`; by torch.accelerator."""
        from .memory import DeviceMemory

        return DeviceMemory(self._accelerator(index))

    def stream(self, index: int = 0) -> Stream:
        """See `Backend`; by torch.accelerator."""
        import torch

        from .streams import DeviceStream

        return DeviceStream(torch.Stream(device=self._accelerator(index)))

    def current_stream(self, index: int = 0) -> Stream:
        """See `Backend`; by torch.accelerator."""
        import torch

        from .streams import DeviceStream

        return DeviceStream(torch.accelerator.current_stream(self._accelerator(index)))

    def synchronize(self, index: int = 0) -> None:
        """See `Backend`; by torch.accelerator."""
        import torch

        torch.accelerator.synchronize(self._accelerator(index))

    def _accelerator(self, index: int) -> torch.device:
        """The device, where torch.accelerator speaks of its type: it knows one in a process. Raises NotPossible."""
        import torch

        device = self.device(index)
        current = torch.accelerator.current_accelerator()
        if current is None or current.type != device.type:
            raise NotPossible(f"torch drives {current.type if current else 'no accelerator'} in this process, not "
                              f"{device.type}", "use one kind of accelerator in a process")
        return device

    def supported(self, op: str, dtype: str, tensors: int | None = None) -> Known:
        """By its own list, if it has one; else by torch's registrations, which say nothing about dtypes."""
        own = self.operators() if isinstance(self, ListsOperators) else None
        if own is not None and op in own:
            dtypes = own[op]
            return Known(status="native" if not dtypes or dtype in dtypes else "none",
                         how=f"the list of backend {self.name}")
        if find_spec("torch") is None:
            raise NotPossible("the registrations of operators are torch's, which is not installed",
                              "pip install 'dayzero[torch]'")
        from .dispatch import Dispatcher, dispatch_key

        key = dispatch_key(self.device_type)
        dispatcher = None if key is None else Dispatcher(key)
        if dispatcher is not None and dispatcher.knows:
            return dispatcher.known(op, tensors)
        if own is not None:
            return Known(status="none", how=f"not in the list of backend {self.name}")
        raise NotPossible(f"nothing says what backend {self.name} implements: the installed torch neither has it nor "
                          "lists its operators", "install the package that brings the backend")

    def collectives(self) -> Collectives:
        """See `Backend`."""
        from .collectives import Collectives

        return Collectives(self.library, self.staged, self.device())

    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """What every device that torch drives can do."""
        return {"attention": ATTENTION, "norm": NORM, "kv_cache": CACHE}

    def optimizations(self, model: Any = None, *, attention: str = "", norm: str = "", kv_cache: str = "",
                      linear: str = "") -> AbstractContextManager[Chosen]:
        """See `Backend`."""
        wanted = Chosen(attention=attention, norm=norm, kv_cache=kv_cache, linear=linear)
        check(wanted, self.choices(), self.name)
        return optimizations(wanted, model)

    def parallel_plan(self, layout: Layout, described: Device | None = None) -> ParallelPlan:
        """See `Backend`: each rank has a device of its own."""
        return planned(layout, described, self.device_count, shared=False, name=self.name, library=self.library,
                       staged=self.staged)
