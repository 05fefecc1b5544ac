"""Weights that replicas share: each holds a part of every parameter and gets the others' for as long as it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dayzero.errors import NotPossible
from dayzero.runtime.building import decoder_layers

from .mesh import Mesh


def shared_by_replicas(model: Any, shares: Any, tensors: Mapping[str, torch.Tensor], mesh: Mesh) -> None:
    """By torch's fully_shard: layer by layer, and what is outside of them. Raises NotPossible where the library of the
    groups does not take the device's tensors."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard

    for name in shares.cuts:
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        if leaf in owner._buffers:
            owner._buffers[leaf] = tensors[name]
    if mesh.replicas.staged:
        raise NotPossible("weights cannot be shared by replicas on devices whose tensors ranks send through the host",
                          "run each replica with weights of its own")
    devices = DeviceMesh.from_group(mesh.replicas.handle, next(iter(tensors.values())).device.type)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=devices, reshard_after_forward=True)
    fully_shard(model, mesh=devices, reshard_after_forward=True)
    state: dict[str, nn.Parameter] = {}
    made: dict[int, nn.Parameter] = {}  # tied ones stay one
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(DTensor.from_local(
                tensors[name], devices, [Shard(0)], run_check=False, shape=parameter.shape, stride=parameter.stride()),
                requires_grad=parameter.requires_grad)
        state[name] = made[id(parameter)]
    model.load_state_dict(state, strict=False, assign=True)
