"""Ranks that hold different parts of the same tensors, and what they send each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from dayzero.runtime.timeline import OFF, Timeline


@dataclass(frozen=True)
class Coming:
    """A message that is on its way."""

    work: Any
    """Of torch.distributed; None: it is there."""
    carried: torch.Tensor
    """What the library reads or writes."""
    device: torch.device
    """Where the tensor is wanted."""
    timeline: Timeline = OFF

    def result(self) -> torch.Tensor:
        """The tensor, once it is there."""
        if self.work is not None:
            with self.timeline.span("collective", "message", nbytes=self.carried.nbytes):
                self.work.wait()
        return self.carried.to(self.device)


class Group:
    """Some ranks, by a process group of torch.distributed; `handle` may be replaced when groups are made anew. Where it
    is `staged`, its library does not take the device's tensors: they go through the host's memory."""

    def __init__(self, size: int, rank: int, handle: Any = None) -> None:
        self.size = size
        self.rank = rank
        self.handle = handle
        self.staged = False
        self.timeline = OFF
        self.sent: Counter[str] = Counter()
        """How many collectives of each kind this rank took part in."""
        self.whole: Counter[str] = Counter()
        """Operators that ran whole on every rank though their input was in parts, and how often."""

    def sum(self, value: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The sum (or `max`, `min`) over all ranks; a new tensor."""
        self.sent["all_reduce"] += 1
        with self.timeline.span("collective", "all_reduce", nbytes=value.nbytes):
            return self._reduce(value.detach().clone(memory_format=torch.contiguous_format), op)

    def gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' tensors, which have one shape."""
        self.sent["all_gather"] += 1
        with self.timeline.span("collective", "all_gather", nbytes=value.nbytes):
            return self._gather(value.detach().contiguous())

    def send_from(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        """The owner's tensor; the others give one of the same shape to receive it in."""
        self.sent["broadcast"] += 1
        with self.timeline.span("collective", "broadcast", nbytes=value.nbytes):
            return self._broadcast(owner, value.detach().contiguous())

    def least(self, numbers: torch.Tensor) -> Coming:
        """The smallest of all ranks' integers, each for itself, in the host's memory; on its way meanwhile."""
        import torch.distributed as dist

        carried, work = numbers.clone(), None
        if self.size > 1:
            self.sent["all_reduce"] += 1
            work = dist.all_reduce(carried, dist.ReduceOp.MIN, group=self.handle, async_op=True)
        return Coming(work, carried, carried.device, self.timeline)

    def send(self, to: int, value: torch.Tensor) -> Coming:
        """To one rank of the group, which receives it; the value may not change before it is there."""
        import torch.distributed as dist

        self.sent["send"] += 1
        carried = self._carried(value.detach().contiguous())
        return Coming(dist.isend(carried, group=self.handle, group_dst=to), carried, value.device, self.timeline)

    def receive(self, source: int, made: torch.Tensor) -> Coming:
        """What a rank of the group sends, of the shape and type of `made`, which may be written to."""
        import torch.distributed as dist

        carried = self._carried(made)
        return Coming(dist.irecv(carried, group=self.handle, group_src=source), carried, made.device, self.timeline)

    def _carried(self, value: torch.Tensor) -> torch.Tensor:
        """What the library takes."""
        return value.cpu() if self.staged else value

    def _reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        import torch.distributed as dist

        if self.staged and value.device.type != "cpu":
            return self._reduce(value.cpu(), op).to(value.device)
        if self.size > 1:
            if value.dtype == torch.bool:
                return self._reduce(value.to(torch.uint8), op).to(torch.bool)
            dist.all_reduce(value, getattr(dist.ReduceOp, op.upper()), group=self.handle)
        return value

    def _gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        import torch.distributed as dist

        if self.staged and value.device.type != "cpu":
            return [each.to(value.device) for each in self._gather(value.cpu())]
        made = [torch.empty_like(value) for _ in range(self.size)]
        if value.dtype == torch.bool:
            return [each.to(torch.bool) for each in self._gather(value.to(torch.uint8))]
        dist.all_gather(made, value, group=self.handle)
        return made

    def _broadcast(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        if self.staged and value.device.type != "cpu":
            return self._broadcast(owner, value.cpu()).to(value.device)
        dist.broadcast(value, group=self.handle, group_src=owner)
        return value


class Imagined(Group):
    """A group of which there is only this rank: for looking at what a layer would do. Values mean nothing."""

    def __init__(self, size: int, rank: int = 0) -> None:
        super().__init__(size, rank)
        self.taken: list[tuple[torch.Tensor, int, tuple[int, ...]]] = []
        """Plain tensors of which a part was taken to go with a part of another one: (tensor, dimension, segments)."""
        self.borders: dict[int, set[int]] = {}
        """Places where a dimension of so many elements was cut by the code, which parts of it did not allow."""

    def _reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        return value

    def _gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        return [value] * self.size

    def _broadcast(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        return value
