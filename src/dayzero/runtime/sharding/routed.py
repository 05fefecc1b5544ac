"""Routed experts of which a rank holds some: it computes what those add, and the ranks add up.

Where replicas share experts, each one's tokens go to all of them. Then every layer is a meeting of these replicas, and
they have to run their forwards in step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .experts import Experts
from .groups import Group
from .mesh import Mesh
from .sharded import applied
from .shares import Shares


def deal_out(model: nn.Module, shares: Shares, mesh: Mesh) -> None:
    """Make the model's routed experts work together over ranks."""
    if mesh.experts.size == 1:
        return
    present = dict(model.named_modules())
    for each in shares.rules.experts:
        if each.name not in present:
            continue
        if each.packed:
            _packed(present[each.name], each, mesh)
        else:
            parent = present[each.name.rpartition(".")[0]]
            _listed(present[each.name], each, mesh)
            if mesh.peers.size > 1:
                parent.forward = functools.partial(_with_peers, parent.forward, mesh.peers)


def _packed(module: nn.Module, experts: Experts, mesh: Mesh) -> None:
    size = experts.count // mesh.place.layout.ep
    for name, value in vars(module).items():
        if value == experts.count and isinstance(value, int) and "expert" in name:
            setattr(module, name, size)  # the code counts what it holds
    module.forward = functools.partial(
        _some, module.forward, mesh.place.expert * size, size, mesh)


def _some(forward: Callable[..., torch.Tensor], first: int, count: int, mesh: Mesh, *args: Any, **kwargs: Any
          ) -> torch.Tensor:
    """Packed experts of which a rank holds `count` from `first` on, called with the numbers of all."""
    values = [*args, *kwargs.values()]
    index = next(each for each in values if isinstance(each, torch.Tensor) and not each.is_floating_point())
    weights = next(each for each in values if isinstance(each, torch.Tensor) and each.is_floating_point()
                   and each.shape == index.shape)
    hidden = values[0]
    tokens = counted(hidden.shape[0], mesh.peers)
    shared = [applied(_Enter, each, tokens, mesh.peers, mesh.experts) for each in (hidden, weights)]
    numbers = gathered(index, tokens, mesh.peers)
    rows, numbers, factors = _own(numbers, shared[1], first, count)
    given = {id(hidden): shared[0][rows], id(index): numbers, id(weights): factors}
    out = shared[0].new_zeros(shared[0].shape)
    if len(rows):
        made = forward(*(given.get(id(each), each) for each in args),
                       **{name: given.get(id(each), each) for name, each in kwargs.items()})
        out = out.index_add(0, rows, made.to(out.dtype))
    return applied(_Leave, out, tokens, mesh.peers, mesh.experts)  # type: ignore[no-any-return]


def _own(index: torch.Tensor, weights: torch.Tensor, first: int, count: int
         ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens that chose any of the rank's experts, the numbers of those among its own, their weights).

    As many columns as the most that a token chose; a token with fewer has its first one again, with weight 0.
    """
    mine = (index >= first) & (index < first + count)
    rows = mine.any(1).nonzero().flatten()
    mine, index, weights = mine[rows], index[rows], weights[rows]
    most = int(mine.sum(1).max()) if len(rows) else 0
    order = mine.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :most]
    mine, numbers, factors = mine.gather(1, order), index.gather(1, order) - first, weights.gather(1, order)
    return rows, torch.where(mine, numbers, numbers[:, :1]), torch.where(mine, factors, 0)


def counted(own: int, peers: Group) -> list[int]:
    """Tokens of each of the replicas that share experts."""
    return [int(each) for each in peers.gather(torch.tensor([own]))] if peers.size > 1 else [own]


def gathered(value: torch.Tensor, tokens: list[int], peers: Group) -> torch.Tensor:
    """All replicas' rows, one behind the other."""
    if peers.size == 1:
        return value
    padded = value.detach().new_zeros((max(tokens), *value.shape[1:]))
    padded[:value.shape[0]] = value.detach()
    return torch.cat([each[:own] for each, own in zip(peers.gather(padded), tokens, strict=True)])


def _rows_of(value: torch.Tensor, tokens: list[int], peers: Group) -> torch.Tensor:
    first = sum(tokens[:peers.rank])
    return value[first:first + tokens[peers.rank]]


class _Enter(torch.autograd.Function):
    """All replicas' tokens; what each rank's experts say about them is added up on the way back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, tokens: list[int], peers: Group, experts: Group) -> torch.Tensor:
        ctx.of = tokens, peers, experts
        made = gathered(value, tokens, peers)
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        tokens, peers, experts = ctx.of
        return _rows_of(experts.sum(given[0]), tokens, peers), None, None, None


class _Leave(torch.autograd.Function):
    """The sum of what all ranks' experts add, for the replica's own tokens."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, tokens: list[int], peers: Group, experts: Group) -> torch.Tensor:
        ctx.of = tokens, peers, experts
        return _rows_of(experts.sum(value), tokens, peers)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        tokens, peers, _ = ctx.of
        return gathered(given[0], tokens, peers), None, None, None


def _listed(modules: Any, experts: Experts, mesh: Mesh) -> None:
    """Every rank calls all that were chosen, in the same order; the one that holds an expert sends what it gives."""
    for number in range(experts.count):
        owner = number * mesh.place.layout.ep // experts.count
        if owner == mesh.place.expert:
            module = modules[number]
            module.forward = functools.partial(_shown, module.forward, owner, mesh.experts)
        else:
            modules[number] = Absent(owner, mesh.experts)


class Absent(nn.Module):
    """An expert that another rank holds."""

    def __init__(self, owner: int, group: Group) -> None:
        super().__init__()
        self.owner = owner
        self.group = group

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """What the owner computes of the same input; an expert gives what it takes the shape of."""
        return applied(_Received, hidden, self.owner, self.group)  # type: ignore[no-any-return]


def _shown(forward: Callable[..., torch.Tensor], owner: int, group: Group, hidden: torch.Tensor, *args: Any,
           **kwargs: Any) -> torch.Tensor:
    made = forward(applied(_Heard, hidden, owner, group), *args, **kwargs)
    group.send_from(owner, made)
    return made


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, owner: int, group: Group) -> torch.Tensor:
        ctx.of = owner, group
        return group.send_from(owner, torch.empty_like(value, memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        owner, group = ctx.of
        return group.send_from(owner, torch.empty_like(given[0], memory_format=torch.contiguous_format)), None, None


class _Heard(torch.autograd.Function):
    """On the way back the others get the gradient of the input."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, owner: int, group: Group) -> torch.Tensor:
        ctx.of = owner, group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        ctx.of[1].send_from(ctx.of[0], given[0])
        return given[0], None, None


def _with_peers(forward: Callable[..., Any], peers: Group, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Code that calls experts one by one, on all replicas' tokens, so that all of them call the same ones."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    tokens = counted(flat.shape[0], peers)
    total, own = sum(tokens), slice(sum(tokens[:peers.rank]), sum(tokens[:peers.rank + 1]))
    made = forward(gathered(flat, tokens, peers).view(1, total, -1), *args, **kwargs)

    def mine(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.shape[:2] == (1, total):
            return value[:, own].reshape(*hidden.shape[:-1], *value.shape[2:])
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == total:
            return value[own]
        return value

    return tree_map(mine, made)
