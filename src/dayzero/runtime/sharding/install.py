"""Puts a rank's weights into its model and makes its forward right together with the other ranks'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from .mesh import Mesh
from .replicas import shared_by_replicas
from .routed import deal_out
from .rules import TP
from .sharded import Sharded, whole
from .shares import Shares
from .states import states_in_parts


def install(model: nn.Module, shares: Shares, tensors: Mapping[str, torch.Tensor], mesh: Mesh) -> None:
    """`tensors`: the rank's part of everything in `shares.cuts`; the model keeps them. Names that are not in it are
    left as they are (someone else puts them in).

    When ranks are replaced, join the mesh again: the model goes on with its groups.
    """
    if shares.fsdp:
        shared_by_replicas(model, shares, tensors, mesh)
        return
    made: dict[int, nn.Parameter] = {}
    for name in shares.cuts:
        if name in tensors:
            put(model, name, tensors[name], made, trained=True, part=partial(in_parts, name, shares=shares, mesh=mesh))
    if mesh.tp.size > 1:
        states_in_parts()
    deal_out(model, shares, mesh)
    head = shares.rules.vocabulary
    if head and any(name.startswith(f"{head}.") for name in shares.cuts):
        model.get_submodule(head).register_forward_hook(lambda _module, _args, given: whole(given))


def put(model: nn.Module, name: str, tensor: torch.Tensor, made: dict[int, nn.Parameter], *, trained: bool,
        part: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> None:
    """In the place of a parameter, as `part` gives it, or of a buffer. `made`: what took the place of parameters so
    far, so that tied ones stay so; `trained`: whether one keeps its gradient, if it had one."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    old = owner._parameters.get(leaf)
    if old is None:
        owner._buffers[leaf] = tensor
        return
    if id(old) not in made:
        made[id(old)] = nn.Parameter(
            part(tensor), requires_grad=trained and tensor.is_floating_point() and old.requires_grad)
    owner._parameters[leaf] = made[id(old)]


def in_parts(name: str, tensor: torch.Tensor, shares: Shares, mesh: Mesh) -> torch.Tensor:
    """A rank's part of a parameter as what its module takes."""
    rule = shares.rules.cut.get(name)
    group = mesh.tp if rule is not None and rule.group == TP else mesh.width
    if rule is None or group.size == 1:
        return tensor
    return Sharded(tensor, rule.along.dim, rule.along.segments, group)
