"""This host's processor: one rank's share of it, measured in about five seconds.

The ranks of a local run share cores, caches and memory channels, so what one of them gets is measured while all of
them work: as many processes as ranks, started together, each timing the same things at the same moment (`cpu_probe`).
Of more ranks than cores only as many as cores are started; each then stands for several that take turns.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING

from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Device, Layout, Link, Noun
from dayzero.units import format_bytes, format_rate, format_seconds

from . import host
from .base import Memory, ParallelPlan, Stream
from .parallel import planned
from .together import together
from .torch_backend import ATTENTION, LINEAR, TorchBackend

if TYPE_CHECKING:
    import torch

_NEEDS = ("torch", "transformers")
_MODULE = "dayzero.backends.cpu_process"


class Sample(Noun, frozen=True, kw_only=True):
    """What one process of the probe measured."""

    rounds: dict[str, list[float]]
    """For each quantity its value in every round, in the units of `Device` and `Link`."""
    process_bytes: int
    """Private memory before any weight was loaded."""


class CpuBackend(TorchBackend):
    """A device of it is one rank's share: its cores divided by the ranks, at least one."""

    name = device_type = "cpu"
    library, staged = "gloo", False

    def available(self) -> str:
        """Which packages are missing; empty when it can be used."""
        missing = [package for package in _NEEDS if find_spec(package) is None]
        return f"{' and '.join(missing)} not installed" if missing else ""

    @property
    def device_count(self) -> int:
        """Cores that this process may use."""
        return 0 if self.available() else host.cores()

    def describe(self) -> dict[str, str]:
        """Processor, cores and memory."""
        if self.available():
            return {}
        return {"processor": " ".join(host.identity()).strip(), "architecture": platform.machine(),
                "cores": str(host.cores()), "available memory": format_bytes(host.available_memory())}

    def runs(self, device: Device) -> bool:
        """Whether the device is a share of a host like this one, as `measure` describes it."""
        return (device.name, device.arch, device.vendor) == ("local", platform.machine(), host.identity()[0])

    def device(self, index: int = 0) -> torch.device:
        """The host: all ranks share it. Raises NotPossible."""
        super().device(index)
        import torch

        return torch.device("cpu")

    def memory(self, index: int = 0) -> Memory:
        """Of the host, as this process sees it."""
        from .memory import HostMemory

        return HostMemory()

    def stream(self, index: int = 0) -> Stream:
        """A thread."""
        from .streams import ThreadStream

        return ThreadStream()

    def current_stream(self, index: int = 0) -> Stream:
        """The thread that calls."""
        from .streams import CallerStream

        return CallerStream()

    def synchronize(self, index: int = 0) -> None:
        """Nothing: what the thread that calls has begun is done."""

    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Torch has a flash kernel for processors."""
        return {**super().choices(), "attention": (*ATTENTION, "flash"), "linear": LINEAR}

    def parallel_plan(self, layout: Layout, described: Device | None = None) -> ParallelPlan:
        """Any layout: ranks share cores in turns."""
        return planned(layout, described, self.device_count, shared=True, name=self.name, library=self.library,
                       staged=self.staged)

    def measure(self, ranks: int, progress: Progress = SILENT) -> Device:
        """One rank's share of this host, with every figure's source. About ten seconds.

        Raises NotPossible without torch and transformers, UsageError for ranks < 1, StageError when a process fails.
        """
        if reason := self.available():
            raise NotPossible(f"this machine cannot be measured: {reason}", "pip install 'dayzero[torch]'")
        if ranks < 1:
            raise UsageError(f"not a number of ranks: {ranks}", "write 1 or more")
        memory = host.available_memory() // ranks
        threads = max(1, host.cores() // ranks)
        processes = min(ranks, max(2, host.cores()))  # a link takes two
        return _device(_probe(processes, threads, progress), threads, memory, ranks)


def _device(samples: list[Sample], threads: int, memory: int, ranks: int) -> Device:
    """Medians over all rounds of all processes, each with its source. Where processes stand for more ranks than there
    are, a rank gets its part of a process's rates and waits so much longer."""
    processes = len(samples)
    shared = f"; {ranks} ranks share that in turns, a rank's part is {processes}/{ranks}" if ranks > processes else ""
    how = f"{processes} process{'es' if processes > 1 else ''} at once, threads each: {threads}{shared}"
    summary = _Summary(samples, f"measured {datetime.date.today().isoformat()}", how, ranks / processes)
    what = {
        "memory_bandwidth": "bf16 matrix-vector products over weights larger than the cache",
        "flops.bf16": "bf16 matrix products of prefill size",
        "flops.f32": "f32 matrix products of prefill size",
        "op_overhead": "decode steps of a narrow model, divided by the operators that they issue",
    }
    return Device(
        name="local", vendor=host.identity()[0], arch=platform.machine(), memory_bytes=memory,
        memory_bandwidth=summary.rate("memory_bandwidth"),
        flops={scheme: summary.rate(f"flops.{scheme}") for scheme in ("bf16", "f32")}, efficiency=1.0, measured=True,
        op_overhead=summary.seconds("op_overhead"), process_bytes=max(sample.process_bytes for sample in samples),
        links=(_link(summary),) if ranks > 1 else (),
        sources={
            **{name: summary.source(name, text) for name, text in what.items()},
            "memory_bytes": f"{summary.when}: memory available to new processes, divided by {ranks}",
            "process_bytes": f"{summary.when}: private memory of a process that has run a narrow model and joined "
                             f"a process group; the largest of {processes}",
            "efficiency": "the rates are measured",
        })  # fmt: skip


class _Summary:
    """Medians and spreads of what several processes measured, each of which stands for `turns` ranks."""

    def __init__(self, samples: list[Sample], when: str, how: str, turns: float) -> None:
        self.samples, self.when, self.how, self.turns = samples, when, how, turns

    def values(self, name: str) -> list[float]:
        return [value for sample in self.samples for value in sample.rounds[name]]

    def rate(self, name: str) -> float:
        return median(self.values(name)) / self.turns

    def seconds(self, name: str) -> float:
        return median(self.values(name)) * self.turns

    def source(self, name: str, what: str) -> str:
        values = self.values(name)
        spread = (max(values) - min(values)) / median(values)
        return f"{self.when}: {what}; {self.how}; median of {len(values)} rounds, spread {spread:.0%}"


def _link(summary: _Summary) -> Link:
    """From all-reduces, which decide how fast ranks work together; what the others took is told in the source."""
    others = "; ".join(
        f"{kind} {format_seconds(summary.seconds(f'{kind}.latency'))}, "
        f"{format_rate(summary.rate(f'{kind}.bandwidth'))}" for kind in ("send", "broadcast"))
    return Link(name="loopback", devices=0, bandwidth=summary.rate("all_reduce.bandwidth"),
                latency=summary.seconds("all_reduce.latency"),
                source=f"{summary.source('all_reduce.latency', 'one message of a ring all-reduce')}; {others}")


def _probe(ranks: int, threads: int, progress: Progress) -> list[Sample]:
    """What each of `ranks` processes measured. Raises StageError; none outlives the call."""
    return together(_MODULE, ranks, threads, Sample, progress)


BACKEND = CpuBackend()
