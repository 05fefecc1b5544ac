"""Where a rank stands in a layout, which layouts can be run, and the process groups.

Replicas (dp) are outermost. A replica's tp * pp ranks are one default process group of their own, so that the library
below sees a world of exactly that size; ranks at the same place in different replicas form one more group.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dayzero.errors import NotPossible
from dayzero.schema import Layout

_TIMEOUT = timedelta(minutes=30)


def refusal(layout: Layout) -> str:
    """Why the reference runtime cannot run a layout; empty when it can try."""
    if layout.cp > 1:
        return f"the reference runtime has no context parallelism (cp={layout.cp})"
    if layout.attention_degree != layout.tp:
        return f"the reference runtime splits attention over all tp ranks (attention_tp={layout.attention_tp})"
    if layout.ep not in (1, layout.tp):
        return f"the reference runtime spreads experts over exactly the tp ranks of a replica (ep={layout.ep})"
    if layout.tp > 1 and layout.pp > 1:
        return "transformers cannot yet combine tensor and pipeline parallelism"
    return ""


@dataclass(frozen=True)
class Place:
    """One rank's place."""

    layout: Layout
    rank: int
    """Global rank."""

    @property
    def replica(self) -> int:
        """Which replica it belongs to."""
        return self.rank // (self.layout.tp * self.layout.pp)

    @property
    def inner(self) -> int:
        """Rank inside the replica: stage by stage, tp innermost."""
        return self.rank % (self.layout.tp * self.layout.pp)

    @property
    def stage(self) -> int:
        """Pipeline stage."""
        return self.inner // self.layout.tp

    @property
    def first_of_tp(self) -> bool:
        """Whether it speaks for its tp group, whose ranks all hold the same activations."""
        return self.inner % self.layout.tp == 0


class Mesh:
    """The process groups of one rank; to be joined once and left at the end."""

    def __init__(self, layout: Layout) -> None:
        """Join. Raises NotPossible for a layout that cannot be run."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        if reason := refusal(layout):
            raise NotPossible(reason, "choose another layout with --layout")
        self._store, rank, _ = next(rendezvous("env://"))
        self.place = place = Place(layout, rank)
        self._replicas: Any = None
        dist.init_process_group(
            "gloo", store=PrefixStore(f"replica-{place.replica}", self._store), rank=place.inner,
            world_size=layout.tp * layout.pp, timeout=_TIMEOUT)
        if layout.dp > 1:
            self._replicas = dist.ProcessGroupGloo(
                PrefixStore(f"inner-{place.inner}", self._store), place.replica, layout.dp, _TIMEOUT)

    def average_over_replicas(self, tensor: Any) -> Any:
        """The mean over all replicas' tensors of the same shape, in place."""
        if self._replicas is not None:
            self._replicas.allreduce([tensor]).wait()
            tensor /= self.place.layout.dp
        return tensor

    def all_agree(self, opinion: bool) -> bool:
        """Whether all ranks of all replicas say yes; each of them has to ask."""
        import torch
        import torch.distributed as dist

        votes = torch.tensor([float(opinion)])
        dist.all_reduce(votes, dist.ReduceOp.MIN)
        if self._replicas is not None:
            self._replicas.allreduce([votes], dist.ReduceOp.MIN).wait()
        return bool(votes == 1.0)

    def leave(self) -> None:
        """Wait until every rank has come here, then take the groups down in order."""
        import torch.distributed as dist

        self.all_agree(True)
        self._replicas = None
        dist.destroy_process_group()


def distributed_config(layout: Layout) -> Any:
    """What transformers is told for one replica; None when a replica is one rank."""
    if layout.tp * layout.pp == 1:
        return None
    from transformers.distributed import DistributedConfig

    return DistributedConfig(tp_size=layout.tp, pp_size=layout.pp, ep_size=layout.ep)
