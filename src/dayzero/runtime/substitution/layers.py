"""One layer alone, with its own weights and no others: what a model that fits nowhere is checked by.

The model's code runs as one stage of a pipeline that holds this layer, so masks and rotary tables are its own; what it
holds beside the layer is zeros that take no memory, since the layer is given what a run had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dayzero.backends import host
from dayzero.errors import NotPossible
from dayzero.runtime.assignment import BYTES
from dayzero.runtime.building import blueprint, decoder_layers
from dayzero.runtime.building.zeros import zeros
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.pipeline import Flow, Part, observe
from dayzero.runtime.pipeline.part import Call
from dayzero.runtime.recording.kinds import kinds
from dayzero.units import format_bytes

from .reference import Reference, fill, kernels, plain

Facts = tuple[Any, ...]


class _DoneError(BaseException):
    """The layer has run: the rest need not. Not to be caught by a model's code."""


class Layers:
    """The layers of a release, and what crosses between them; nothing has weights. Raises NotPossible when the model
    cannot be built, or not be cut."""

    def __init__(self, root: Path, *, own: bool = False) -> None:
        self.root, self.own = root, own
        model: Any = blueprint(root, own=own).model
        self._flows: dict[str, Flow] = {}
        layers = decoder_layers(model)
        paths = {id(module): name for name, module in model.named_modules()}
        self.names = [paths[id(layer)] for layer in layers]
        """Path of each layer."""
        self.kinds = _grouped(layers)
        """First layer of each kind -> all of it. A kind has the same modules with the same sizes and settings."""

    def flow(self, dtype: str) -> Flow:
        """What crosses between layers in a precision. Raises NotPossible when the model cannot be cut."""
        if dtype not in self._flows:
            model: Any = blueprint(self.root, dtype, own=self.own).model
            with kernels(model, self.own):
                self._flows[dtype] = observe(model)
        return self._flows[dtype]

    @contextlib.contextmanager
    def layer(self, number: int, dtype: str = "f32", *, threads: int = 4, simple: bool = True) -> Iterator[Reference]:
        """One of them, with its weights. Raises NotPossible when it does not fit, ReleaseError when its weights are not
        in the files."""
        built = blueprint(self.root, dtype, own=self.own)
        model: Any = built.model
        layer = decoder_layers(model)[number]
        _check_memory(layer, dtype, number)
        found = kinds(model)
        with kernels(model, self.own):
            read = fill(model, Checkpoint(self.root, model), f"{self.names[number]}.", threads=threads)
            if simple:
                plain(model)
            stages = [each for each in ((0, number), (number, number + 1), (number + 1, len(self.names)))
                      if each[0] < each[1]]
            part = Part(model, self.flow(dtype), stages, 1 if number else 0)
            layer.register_forward_hook(_stop)

            def forward(ids: torch.Tensor) -> None:
                rows = [torch.zeros(sizes.shape(*ids.shape), dtype=sizes.dtype)
                        for sizes in part.boundary(part.receives)]
                with zeros(model), contextlib.suppress(_DoneError):
                    part.run(Call(ids, {"use_cache": False}), rows)
            yield Reference(built.config, layer, self.names[number], found, forward, read)


def _stop(module: nn.Module, args: Any, output: Any) -> None:
    raise _DoneError


def _check_memory(layer: nn.Module, dtype: str, number: int) -> None:
    need = sum(each.numel() for each in layer.parameters()) * BYTES[dtype]
    if need > host.available_memory():
        raise NotPossible(f"layer {number} takes {format_bytes(need)} in {dtype} and "
                          f"{format_bytes(host.available_memory())} are free here", "take a machine with more memory")


def _grouped(layers: nn.ModuleList) -> dict[int, tuple[int, ...]]:
    counting = _counting(layers)
    alike: dict[Facts, list[int]] = {}
    for number, layer in enumerate(layers):
        alike.setdefault(_facts(layer, counting), []).append(number)
    return {numbers[0]: tuple(numbers) for numbers in alike.values()}


def _counting(layers: nn.ModuleList) -> set[str]:
    """Names of attributes that hold the number of the layer, in every layer that has them."""
    found: dict[str, bool] = {}
    for number, layer in enumerate(layers):
        for module in layer.modules():
            for name, value in vars(module).items():
                if type(value) is int:
                    found[name] = found.get(name, True) and value == number
    return {name for name, counts in found.items() if counts} if len(layers) > 1 else set()


def _facts(layer: nn.Module, counting: set[str]) -> Facts:
    """What is the same in layers of a kind: modules, shapes and settings."""
    return tuple((path, type(module).__name__,
                  tuple((name, tuple(each.shape)) for name, each in module._parameters.items() if each is not None),
                  tuple((name, value) for name, value in sorted(vars(module).items()) if name not in counting
                        and name != "training" and not name.startswith("_")
                        and isinstance(value, (bool, int, float, str, type(None)))))
                 for path, module in layer.named_modules())
