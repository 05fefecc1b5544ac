"""What a backend is: one kind of device, and how dayzero asks it for memory, streams, operators and collectives.

A plug-in is an object with these members, registered under the entry-point group `dayzero.backends`; `TorchBackend`
implements all but what only the device's maker can say (docs/backends.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from dayzero.progress import SILENT, Progress
from dayzero.schema import Device, Layout, Noun

if TYPE_CHECKING:
    import torch

    from .collectives import Collectives

T = TypeVar("T")
Status = Literal["native", "composite", "fallback", "compiled", "library", "none", "unknown"]
STATUSES: dict[Status, str] = {
    "none": "not implemented there", "unknown": "nothing says whether it is",
    "library": "needs the real kernel library",
    "fallback": "runs on another device, with copies", "compiled": "only as a decomposition when compiled",
    "composite": "torch's own code for any device", "native": "has a kernel of its own",
}  # fmt: skip
"""Status -> what it means; the worst first."""


class Known(Noun, frozen=True, kw_only=True):
    """What a source says about an operator."""

    status: Status
    """How it is implemented."""
    how: str
    """Where that is known from."""


class Chosen(Noun, frozen=True, kw_only=True):
    """Which implementations are to be used; empty: nobody chose."""

    attention: str = ""
    """Attention, such as eager, sdpa or flash."""
    norm: str = ""
    """Normalisation: plain or fused."""
    kv_cache: str = ""
    """What holds keys, values and states: dynamic or paged."""
    linear: str = ""
    """Products with weight matrices: library is what torch takes by itself, onednn that one."""


class ParallelPlan(Noun, frozen=True, kw_only=True):
    """What of a layout a backend can run on this machine, and with what."""

    layout: Layout
    """The layout that was asked about."""
    reason: str
    """Why it cannot run it; empty: it can."""
    library: str
    """Backend of torch.distributed that carries its collectives."""
    staged: bool
    """Whether they go through the host's memory."""
    devices: tuple[int, ...]
    """Index of the device of each rank; ranks of one tensor-parallel group are neighbours."""
    tp: int
    """Most ranks that should share a layer's matrices: what the fastest link joins; 0: no link is known."""


class Memory(Protocol):
    """Memory of one device, as this process sees it. All in bytes."""

    def total(self) -> int:
        """What the device has, or the cap where one is set that is smaller."""

    def free(self) -> int:
        """What can still be allocated, by anybody who is allowed to."""

    def used(self) -> int:
        """What this process holds."""

    def peak(self) -> int:
        """Most that this process has held since the start or `reset_peak`."""

    def reset_peak(self) -> None:
        """Let `peak` begin at what is used now."""

    def empty_cache(self) -> None:
        """Give back what is kept for later allocations."""

    def cap(self, size: int | None) -> None:
        """Let this process hold no more than `size`; None: as much as there is. Beyond it an allocation raises
        RuntimeError (torch.OutOfMemoryError where the device has an allocator of its own). Raises NotPossible."""


class Stream(Protocol):
    """Work that is done in order, beside that of other streams."""

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Do work after what the stream was given before. Its result may be used on this stream; by others after
        they waited for it."""

    def wait(self, other: Any) -> None:
        """Begin what is given from now on after what another stream of the same backend was given up to now."""

    def synchronize(self) -> None:
        """Block until all of its work is done. Raises what the work raised that nobody asked for since."""


@runtime_checkable
class Backend(Protocol):
    """One kind of device on this machine. Nothing is imported or touched before a method is called."""

    name: str
    """Name that users write."""
    device_type: str
    """torch's name of it."""

    def available(self) -> str:
        """Why it cannot be used here, in one sentence; empty when it can."""

    def is_available(self) -> bool:
        """Whether it can be used here."""

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

    def device(self, index: int = 0) -> torch.device:
        """torch's device of that index, ready for use. Raises NotPossible without it, UsageError beyond the last."""

    def memory(self, index: int = 0) -> Memory:
        """Memory of a device. Raises as `device`."""

    def stream(self, index: int = 0) -> Stream:
        """A new stream of a device. Raises as `device`."""

    def current_stream(self, index: int = 0) -> Stream:
        """The stream that work goes to which nobody puts elsewhere. Raises as `device`."""

    def synchronize(self, index: int = 0) -> None:
        """Block until a device has done all that it was given."""

    def supported(self, op: str, dtype: str, tensors: int | None = None) -> Known:
        """How an operator such as aten.mm is computed whose first tensor is of that dtype (such as bf16). `tensors`:
        how many the call takes, which tells overloads apart. Raises NotPossible when nothing can be looked up here."""

    def collectives(self) -> Collectives:
        """What ranks do together in the process group of torch.distributed that is open."""

    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """For each field of `Chosen` what may be chosen here."""

    def optimizations(self, model: Any = None, *, attention: str = "", norm: str = "", kv_cache: str = "",
                      linear: str = "") -> AbstractContextManager[Chosen]:
        """Inside of it the named implementations are used, by the given model at once and by all that is loaded; at
        its end all is as before. Raises UsageError for one that is not among the `choices`."""

    def parallel_plan(self, layout: Layout, described: Device | None = None) -> ParallelPlan:
        """What of the layout runs on this machine; `described` has the links that preferences come from."""


@runtime_checkable
class ListsOperators(Protocol):
    """What a backend may have besides: a list of its own, which outweighs what torch says about it."""

    def operators(self) -> Mapping[str, tuple[str, ...]]:
        """Operators, such as aten.mm, that the device computes -> for which dtypes of their first tensor, such as bf16;
        none: all. One that is not in the list is looked up in torch's registrations."""
