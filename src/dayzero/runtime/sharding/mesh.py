"""The process groups of a rank's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from dayzero.errors import NotPossible
from dayzero.runtime.mesh import Place, refusal
from dayzero.runtime.timeline import Timeline
from dayzero.schema import Layout

from .groups import Group

_TIMEOUT = timedelta(minutes=30)


_KEYS: dict[str, Callable[[Place], tuple[int, ...]]] = {
    "tp": lambda place: (place.replica, place.stage),
    "width": lambda place: (place.replica, place.stage, place.index // place.layout.expert_tp),
    "experts": lambda place: (place.block, place.stage, place.width),
    "peers": lambda place: (place.block, place.stage, place.index),
    "replicas": lambda place: (place.stage, place.index),
    "stages": lambda place: (place.replica, place.index),
    "block": lambda place: (place.block,),
}
"""Groups: ranks of which this is the same belong together, in the order of their numbers."""


class Mesh:
    """The groups of one rank; joined once, left at the end, and joined again when ranks have been replaced.

    `tp`: ranks that share each matrix; `width`: those that share the width of the same experts; `experts`: those that
    hold the different experts of a layer; `peers`: replicas at the same place that share experts; `replicas`: all
    replicas at the same place; `stages`: a replica's stages at the same place; `block`: all ranks of replicas that
    work in step, which are those of one replica where replicas share no experts.
    """

    tp: Group
    width: Group
    experts: Group
    peers: Group
    replicas: Group
    stages: Group
    block: Group

    def __init__(self, layout: Layout, rank: int, *, library: str = "gloo", staged: bool = False) -> None:
        """`library`: backend of torch.distributed; `staged`: whether it does not take the device's tensors. Raises
        NotPossible for a layout that cannot be run."""
        if reason := refusal(layout):
            raise NotPossible(reason, "choose another layout with --layout")
        self.place, self._library = Place(layout, rank), library
        for name, members in self._own():
            group = Group(len(members), members.index(rank))
            group.staged = staged
            setattr(self, name, group)
        if self.width.size == self.tp.size:
            self.width = self.tp

    def _own(self) -> Iterator[tuple[str, list[int]]]:
        """(name, members) of this rank's groups."""
        for name, groups in _all_groups(self.place.layout).items():
            yield name, next(members for members in groups if self.place.rank in members)

    def join(self, store: Any, *, timeout: timedelta = _TIMEOUT) -> Mesh:
        """Meet the other ranks at the store; every rank has to. The default group is all of them."""
        import torch.distributed as dist

        dist.init_process_group(self._library, store=store, rank=self.place.rank, timeout=timeout,
                                world_size=self.place.layout.world_size)
        made: dict[tuple[int, ...], Any] = {tuple(range(self.place.layout.world_size)): dist.group.WORLD}
        for name, groups in _all_groups(self.place.layout).items():
            for members in groups:
                if len(members) > 1 and tuple(members) not in made:
                    made[tuple(members)] = dist.new_group(members, timeout=timeout)
                if self.place.rank in members:
                    getattr(self, name).handle = made.get(tuple(members))
        return self

    def record(self, timeline: Timeline) -> None:
        """Tell a timeline what this rank's groups send."""
        for name in _KEYS:
            getattr(self, name).timeline = timeline

    def leave(self, *, wait: bool = True) -> None:
        """Wait until every rank has come here (unless some are gone), then take the groups down."""
        import torch.distributed as dist

        if wait:
            self.all_agree(True)
        dist.destroy_process_group()
        for name in _KEYS:
            getattr(self, name).handle = None

    def abort(self) -> None:
        """Take the groups down without waiting for anybody: ranks that wait for this one get an error at once."""
        import torch.distributed as dist

        handles = {id(handle): handle for name in _KEYS if (handle := getattr(self, name).handle) is not None}
        for handle in handles.values():
            with suppress(RuntimeError):
                handle.abort()
        if dist.is_initialized():
            self.leave(wait=False)

    def all_agree(self, opinion: bool) -> bool:
        """Whether all ranks say yes; each of them has to ask."""
        import torch
        import torch.distributed as dist

        votes = torch.tensor([float(opinion)])
        dist.all_reduce(votes, dist.ReduceOp.MIN)
        return bool(votes == 1.0)

    def least(self, number: int) -> int:
        """The smallest number of the ranks that work in step; each of them has to ask."""
        import torch

        return int(self.block.least(torch.tensor([number])).result())

    def every(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """The numbers of the ranks that work in step, in the order of the ranks; each of them has to ask, for as
        many."""
        import torch

        own = torch.tensor(tuple(numbers), dtype=torch.int64)
        found = self.block.gather(own) if self.block.size > 1 else [own]
        return [tuple(each.tolist()) for each in found]

    def average_over_replicas(self, tensor: Any) -> Any:
        """The mean over all replicas' tensors of the same shape."""
        return self.replicas.sum(tensor) / self.replicas.size if self.replicas.size > 1 else tensor


def _all_groups(layout: Layout) -> dict[str, list[list[int]]]:
    """Every rank's groups, in an order that is the same for all."""
    made: dict[str, list[list[int]]] = {}
    for name, key in _KEYS.items():
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(layout.world_size):
            found.setdefault(key(Place(layout, rank)), []).append(rank)
        made[name] = list(found.values())
    return made
