"""How weights that are put into a model later, from tiers, become parts that ranks share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dayzero.runtime.tiers.placing import Placing

from .install import in_parts
from .mesh import Mesh
from .sharded import Sharded, local
from .shares import Shares


class InParts(Placing):
    """Of one rank of a mesh that has been joined. See Placing."""

    def __init__(self, shares: Shares, mesh: Mesh) -> None:
        self._shares, self._mesh = shares, mesh
        self.together = mesh.width.size > 1

    def parameter(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return in_parts(name, part, self._shares, self._mesh)

    def plain(self, name: str, part: torch.Tensor) -> torch.Tensor:
        del name
        made: torch.Tensor = local(part)
        return made

    def columns(self, name: str, part: torch.Tensor) -> Any:
        rule = self._shares.rules.cut.get(name)
        if rule is None or rule.along.dim or self._mesh.tp.size == 1:
            return part
        return Sharded(part, part.dim() - 1, rule.along.segments, self._mesh.tp)

    def least(self, number: int) -> int:
        return int(self._mesh.width.sum(torch.tensor(number), "min")) if self.together else number


def to_device(model: nn.Module, device: torch.device) -> None:
    """Everything of a model that has values and is no parameter: parameters are read there."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not value.is_meta:
                vars(module)[name] = value.to(device)
