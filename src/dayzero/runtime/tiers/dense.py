"""Layers that are read for each pass, rows of the embedding that are read for their tokens, a head that is read in
blocks of rows. The next layer, or block, is read while one computes. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .parts import Checkpoint, Cut, Layer, Unit
from .placing import Placing, empty, fill, put
from .slots import Slots


class StreamedLayers:
    """Two or more slots for the layers that have no place of their own, in their order."""

    def __init__(self, layers: Sequence[Layer], slots: Slots, placing: Placing) -> None:
        self._layers, self._slots, self._placing = layers, slots, placing

    def install(self) -> None:
        """Hooks around each layer."""
        for number, layer in enumerate(self._layers):
            layer.module.register_forward_pre_hook(self._before(number, layer))
            layer.module.register_forward_hook(self._after(layer))

    def _before(self, number: int, layer: Layer) -> Any:
        following = self._layers[(number + 1) % len(self._layers)].unit

        def hook(module: nn.Module, _: Any) -> None:
            self._slots.need([layer.unit])
            self._slots.ahead([following])
            self._slots.finish([layer.unit])
            fill(module, self._slots.views(layer.unit), self._placing)

        return hook

    def _after(self, layer: Layer) -> Any:
        def hook(module: nn.Module, *_: Any) -> None:
            empty(module, layer.unit.parts)
            self._slots.release()

        return hook


class Rows:
    """The table of embeddings stays in the files: a lookup reads the rows of its tokens. Each of the ranks that share
    its rows reads all that it needs, so nothing has to be put together."""

    def __init__(self, name: str, module: nn.Module, cut: Cut, checkpoint: Checkpoint, device: torch.device,
                 dtype: torch.dtype) -> None:
        self._name, self._module, self._checkpoint = name, module, checkpoint
        self._cut = {axis: kept for axis, kept in cut.items() if axis}
        self._device, self._dtype = device, dtype
        self._plain = module.forward

    def install(self) -> None:
        """Replace the lookup."""
        self._module.padding_idx = None  # type: ignore[assignment]  # a number in the whole table, for gradients
        self._module.forward = self.forward

    def forward(self, index: torch.Tensor) -> Any:
        """As the module's own: with a table of the rows that are asked for, and their numbers in it."""
        ids = sorted(set(index.flatten().tolist()))
        inverse = torch.searchsorted(torch.tensor(ids, device=index.device), index)
        cut = {**self._cut, 0: _ranges(ids)}
        table = torch.empty(self._checkpoint.shape(self._name, cut), dtype=self._dtype, device=self._device)
        self._checkpoint.fill(self._name, cut, table)
        whole = self._module._parameters["weight"]
        put(self._module, "weight", table)
        try:
            return self._plain(inverse)
        finally:
            self._module._parameters["weight"] = whole


def _ranges(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges."""
    made: list[tuple[int, int]] = []
    for each in ids:
        if made and made[-1][1] == each:
            made[-1] = (made[-1][0], each + 1)
        else:
            made.append((each, each + 1))
    return tuple(made)


class Blocks:
    """A matrix of which only some blocks of rows are in memory: each gives its columns of the output."""

    def __init__(self, module: nn.Module, units: Sequence[Unit], slots: Slots, placing: Placing) -> None:
        self._module, self._units, self._slots, self._placing = module, units, slots, placing
        self._name = units[0].parts[0].name
        self._plain = module.forward

    def install(self) -> None:
        """Replace the product."""
        self._module.forward = self.forward

    def forward(self, hidden: torch.Tensor) -> Any:
        """As the module's own."""
        made, at, whole = [], 0, self._module._parameters.get("bias")
        bias = None if whole is None else self._placing.plain(self._name, whole)
        try:
            for number, unit in enumerate(self._units):
                self._slots.need([unit])
                self._slots.ahead([self._units[(number + 1) % len(self._units)]])
                self._slots.finish([unit])
                fill(self._module, self._slots.views(unit), Placing())
                rows = unit.parts[0].shape[0]
                if bias is not None:
                    put(self._module, "bias", bias[at:at + rows])
                made.append(self._plain(hidden))
                at += rows
                self._slots.release()
        finally:
            empty(self._module, self._units[0].parts)
            if bias is not None:
                self._module._parameters["bias"] = whole
        return self._placing.columns(self._name, torch.cat(made, -1))
