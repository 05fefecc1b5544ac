"""What a rank holds of a parameter and of its gradient, whatever shares it, and the whole of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dayzero.runtime.sharding.sharded import is_sharded, like, local, take


def own(tensor: Any) -> torch.Tensor:
    """This rank's part, as a plain tensor."""
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else local(tensor)
    return found


def gradient(parameter: Any) -> torch.Tensor:
    """This rank's part of the gradient: an operator that ran whole leaves a whole one."""
    found = parameter.grad
    if is_sharded(parameter) and not is_sharded(found):
        found = take(found, parameter.dim_, parameter.segments, parameter.group)
    return own(found).detach().contiguous()


def again(part: torch.Tensor, parameter: Any) -> Any:
    """A rank's part as what the parameter is, to be put together with the others'."""
    if isinstance(parameter, DTensor):
        return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False,
                                  shape=parameter.shape, stride=parameter.stride()).full_tensor()
    return like(part, parameter)
