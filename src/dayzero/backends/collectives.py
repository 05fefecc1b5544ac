"""What ranks do together, in the process group of torch.distributed that is open.

Where the library of the group does not take a device's tensors they go through the host's memory: the same calls, with
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
               "product": dist.ReduceOp.PRODUCT}


class Collectives:
    """All of them take contiguous or strided tensors of any dtype that the library sums, and `group` (None: all)."""

    def __init__(self, library: str, staged: bool, device: torch.device) -> None:
        self.library, self.staged, self.device = library, staged, device

    def open(self, rank: int, world: int, store: str) -> None:
        """Open the process group: `store` is torch's init_method, such as file:///PATH."""
        dist.init_process_group(self.library, init_method=store, rank=rank, world_size=world)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", group: Any = None) -> None:
        """Put the sum (max, min, product) over all ranks into the tensor of each."""
        self._in_place(tensor, lambda host: dist.all_reduce(host, _REDUCTIONS[op], group))

    def broadcast(self, tensor: torch.Tensor, source: int, group: Any = None) -> None:
        """Put the tensor of rank `source` into that of each."""
        self._in_place(tensor, lambda host: dist.broadcast(host, source, group))

    def all_gather(self, tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """The tensors of all ranks, which have one shape, in order."""
        given = self._out(tensor)
        made = [torch.empty_like(given) for _ in range(dist.get_world_size(group))]
        dist.all_gather(made, given, group)
        return [self._back(each) for each in made]

    def reduce_scatter(self, tensors: Sequence[torch.Tensor], group: Any = None) -> torch.Tensor:
        """The sum over all ranks of the tensor at this rank's place: `tensors` has one for each rank, of one shape."""
        whole = self._out(torch.stack(list(tensors)))
        if self.library != "gloo":
            made = torch.empty_like(whole[0])
            dist.reduce_scatter(made, list(whole.unbind()), group=group)
            return self._back(made)
        dist.all_reduce(whole, group=group)  # gloo has no better one
        return self._back(whole[dist.get_rank(group)].clone())

    def all_to_all(self, tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]], group: Any = None
                   ) -> list[torch.Tensor]:
        """What each rank had for this one. `tensors`: what this rank has for each, of one dtype; `shapes`: of what it
        gets from each."""
        given = [self._out(tensor).reshape(-1) for tensor in tensors]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        whole = given[0].new_empty(sum(sizes))
        dist.all_to_all_single(whole, torch.cat(given), sizes, [each.numel() for each in given], group)
        return [self._back(part.view(*shape)) for part, shape in zip(torch.split(whole, sizes), shapes, strict=True)]

    def send(self, tensor: torch.Tensor, to: int, group: Any = None) -> None:
        """To one rank, which receives it."""
        dist.send(self._out(tensor), to, group)

    def recv(self, tensor: torch.Tensor, source: int, group: Any = None) -> None:
        """Into the tensor, what rank `source` sends."""
        self._in_place(tensor, lambda host: dist.recv(host, source, group), read=False)

    def barrier(self, group: Any = None) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group)

    def _out(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the library takes: contiguous, on the host where it is staged."""
        return (tensor.cpu() if self.staged else tensor).contiguous()

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device) if self.staged else tensor

    def _in_place(self, tensor: torch.Tensor, call: Callable[[torch.Tensor], Any], read: bool = True) -> None:
        """Let the library write into a tensor, or into a host's copy of it."""
        direct = not self.staged and tensor.is_contiguous()
        given = tensor if direct else self._out(tensor) if read else torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu" if self.staged else tensor.device)
        call(given)
        if not direct:
            tensor.copy_(given)
