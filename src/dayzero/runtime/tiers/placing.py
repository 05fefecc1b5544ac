"""Puts weights into modules and takes them out again. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .parts import Part


class Placing:
    """How parts of tensors are made what modules take: of a rank that shares no tensor with others, as they are."""

    together = False
    """Whether ranks share the width of experts: then they have to run the same ones at the same time."""

    def parameter(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """What a module takes as its parameter of that name, of which this rank has a part."""
        del name
        return part

    def plain(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """This rank's part of what a module has as its parameter of that name."""
        del name
        return part

    def columns(self, name: str, part: torch.Tensor) -> Any:
        """What a module gives, of which this rank has the columns that its rows of a parameter make."""
        del name
        return part

    def least(self, number: int) -> int:
        """The smallest number of the ranks that share the width of experts; each of them has to ask."""
        return number


def put(module: nn.Module, leaf: str, tensor: torch.Tensor) -> None:
    """Make a tensor the module's parameter `leaf`, without a copy."""
    path, _, name = leaf.rpartition(".")
    module.get_submodule(path)._parameters[name] = nn.Parameter(tensor, requires_grad=False)


def fill(module: nn.Module, parts: Iterable[tuple[Part, torch.Tensor]], placing: Placing) -> None:
    """Put in what was read."""
    for part, tensor in parts:
        put(module, part.leaf, placing.parameter(part.name, tensor))


def empty(module: nn.Module, parts: Iterable[Part]) -> None:
    """Take out: what is left has a shape and no data, so that a wrong use cannot go unseen."""
    for part in parts:
        put(module, part.leaf, torch.empty(part.shape, dtype=part.dtype, device="meta"))
