"""Replicas that share weights or experts run their forwards together, also when one has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .mesh import Mesh


class Lockstep:
    """Every forward of one replica is one of all that share with it."""

    def __init__(self, mesh: Mesh, *, fsdp: bool = False) -> None:
        self._group = mesh.replicas if fsdp else mesh.peers
        self._idling = False

    @property
    def alone(self) -> bool:
        """Whether nobody shares with this replica."""
        return self._group.size == 1

    def attach(self, model: nn.Module) -> None:
        """Every call of the model is one of all, before anything else is done for it. Call it after `install`."""
        if not self.alone:
            model.register_forward_pre_hook(self._before, prepend=True)

    def _before(self, *_: Any) -> None:
        if not self._idling:
            self._any(True)

    def finish(self, call: Callable[[], Any]) -> None:
        """Take part until all have finished: `call` runs the model on a token of any kind, for nobody to read."""
        while not self.alone and self._any(False):
            self._idling = True
            try:
                call()
            finally:
                self._idling = False

    def _any(self, busy: bool) -> bool:
        return bool(self._group.sum(torch.tensor([int(busy)])) > 0)
