"""What of a model can lie in a lower tier: single experts, layers, the table of embeddings, the head.

All are found by structure. Experts are a module whose own parameters are stacked along the first dimension and whose
forward takes (hidden, expert of each choice, weight of each choice), or a list of modules of equal parameters. Routers,
norms outside of layers and other small things stay where the computation is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from dayzero.runtime.building import alike, decoder_layers, packed
from dayzero.runtime.loading import Kept

Cut = Mapping[int, tuple[tuple[int, int], ...]]


class Checkpoint(Protocol):
    """What is needed of the release's files; see `loading.Checkpoint`."""

    def fill(self, name: str, ranges: Any, out: torch.Tensor) -> None:
        """Read a part of a tensor."""

    def bytes(self, name: str, ranges: Any = None) -> int:
        """Bytes that it has in the files."""

    def shape(self, name: str, ranges: Any = None) -> tuple[int, ...]:
        """Its shape."""

    @property
    def repaired(self) -> int:
        """Reads that were right the second time only."""

    def keep(self, name: str, ranges: Any) -> Kept | None:
        """A part of it as it is stored."""


@dataclass(frozen=True)
class Part:
    """One tensor of the model, or a part of it."""

    name: str
    leaf: str
    """Its name inside the module that it is put into."""
    cut: Cut
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """In memory."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Unit:
    """What is read and dropped as one."""

    key: tuple[int, int]
    """(group, number): layers and stacks of experts are groups."""
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(part.nbytes for part in self.parts)

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
        """What two units have in common that fit into each other's place."""
        return tuple((part.leaf, part.shape, part.dtype) for part in self.parts)


@dataclass(frozen=True)
class Experts:
    """The experts of one layer on this rank."""

    name: str
    module: nn.Module
    layer: int
    """Number of the layer among those of this rank."""
    units: tuple[Unit, ...]
    packed: bool
    """Whether they are one module with stacked parameters, not a list."""
    router: tuple[str, nn.Module] | None
    """Where a module beside them has one row for each of the release's experts."""


@dataclass(frozen=True)
class Layer:
    """A layer of this rank, without experts and router."""

    name: str
    module: nn.Module
    unit: Unit


@dataclass(frozen=True)
class Found:
    """All that can be moved."""

    layers: tuple[Layer, ...]
    experts: tuple[Experts, ...]
    table: tuple[str, nn.Module] | None
    """(name of the weight, module) of the embedding."""
    head: tuple[str, nn.Module] | None
    """(name of the weight, module) of the output projection."""


class Given:
    """Shares of a rank: {name: cut}; what is not in them, or None there, the rank has nothing of. {}: it has all."""

    def __init__(self, shares: Mapping[str, Cut | None]) -> None:
        self._shares = shares

    def get(self, name: str) -> Cut | None:
        """The cut of a tensor."""
        return self._shares.get(name) if self._shares else {}


class Finder:
    """Finds them, for the shares of this rank; see `Given`."""

    def __init__(self, model: Any, checkpoint: Checkpoint, shares: Mapping[str, Cut | None],
                 dtype: torch.dtype | None) -> None:
        self._model, self._checkpoint, self._dtype = model, checkpoint, dtype
        self._shares = Given(shares)

    def find(self) -> Found:
        """Raises NotPossible for a model without a list of layers."""
        layers: list[Layer] = []
        experts: list[Experts] = []
        names = {id(module): name for name, module in self._model.named_modules()}
        for module in decoder_layers(self._model):
            name = names[id(module)]
            if not self._present(name, module):
                continue
            inside = self._experts(name, module, len(layers))
            experts += inside
            layers.append(Layer(name, module, self._dense(len(layers), name, module, inside)))
        return Found(tuple(layers), tuple(experts), self._named(self._model.get_input_embeddings(), names),
                     self._named(self._model.get_output_embeddings(), names))

    def _present(self, name: str, module: nn.Module) -> bool:
        return any(self._shares.get(f"{name}.{leaf}") is not None for leaf, _ in module.named_parameters())

    def _named(self, module: nn.Module | None, names: Mapping[int, str]) -> tuple[str, nn.Module] | None:
        if module is None or id(module) not in names or getattr(module, "weight", None) is None:
            return None
        name = f"{names[id(module)]}.weight"
        return (name, module) if self._shares.get(name) is not None else None

    def _experts(self, prefix: str, layer: nn.Module, number: int) -> list[Experts]:
        made: list[Experts] = []
        for inner, module in layer.named_modules():
            name = f"{prefix}.{inner}"
            stacked = packed(module) > 0
            listed = isinstance(module, nn.ModuleList) and alike(module)
            if not (stacked or listed) or any(name.startswith(f"{each.name}.") for each in made):
                continue
            units = self._stacked(number, name, module) if stacked else self._listed(number, name, module)
            whole = len(next(module.parameters(recurse=False))) if stacked else len(module)
            made.append(Experts(name, module, number, units, stacked, self._router(name, whole)))
        return made

    def _router(self, name: str, whole: int) -> tuple[str, nn.Module] | None:
        above = name.rpartition(".")[0]
        for inner, module in self._model.get_submodule(above).named_modules():
            path = f"{above}.{inner}"
            own = dict(module.named_parameters(recurse=False))
            if inner and path != name and not path.startswith(f"{name}.") and any(
                    each.dim() == 2 and len(each) == whole for each in own.values()) and not any(
                    self._shares.get(f"{path}.{leaf}") for leaf in own):  # in parts: all ranks have to run it together
                return path, module
        return None

    def _stacked(self, number: int, name: str, module: nn.Module) -> tuple[Unit, ...]:
        leaves = [leaf for leaf, _ in module.named_parameters(recurse=False)]
        cuts = {leaf: self._shares.get(f"{name}.{leaf}") or {} for leaf in leaves}
        count = len(next(module.parameters(recurse=False)))
        kept = [index for first, last in cuts[leaves[0]].get(0, ((0, count),)) for index in range(first, last)]
        return tuple(Unit((number, at), tuple(
            self._part(f"{name}.{leaf}", leaf, {**cuts[leaf], 0: ((index, index + 1),)}) for leaf in leaves))
            for at, index in enumerate(kept))

    def _listed(self, number: int, name: str, module: nn.Module) -> tuple[Unit, ...]:
        made = []
        for at, (inner, child) in enumerate(module.named_children()):
            parts = tuple(self._part(f"{name}.{inner}.{leaf}", leaf, cut) for leaf, _ in child.named_parameters()
                          if (cut := self._shares.get(f"{name}.{inner}.{leaf}")) is not None)
            made.append(Unit((number, at), parts))
        return tuple(made)

    def _dense(self, number: int, prefix: str, layer: nn.Module, inside: list[Experts]) -> Unit:
        apart = [f"{each.name}." for each in inside] + [f"{each.router[0]}." for each in inside if each.router]
        return Unit((-1, number), tuple(
            self._part(name, leaf, cut) for leaf, _ in layer.named_parameters()
            if not (name := f"{prefix}.{leaf}").startswith(tuple(apart))
            and (cut := self._shares.get(name)) is not None))

    def _part(self, name: str, leaf: str, cut: Cut) -> Part:
        dtype = self._model.get_parameter(name).dtype
        if self._dtype is not None and dtype.is_floating_point:
            dtype = self._dtype
        return Part(name, leaf, cut, self._checkpoint.shape(name, cut), dtype)

    def rows(self, name: str, group: int, each: int) -> tuple[Unit, ...]:
        """A matrix in blocks of `each` rows."""
        cut = dict(self._shares.get(name) or {})
        kept = cut.get(0, ((0, len(self._model.get_parameter(name))),))
        whole = [index for first, last in kept for index in (first, last)]
        blocks = [(first, min(first + each, end)) for start, end in zip(whole[::2], whole[1::2], strict=True)
                  for first in range(start, end, each)]
        return tuple(Unit((group, at), (self._part(name, "weight", {**cut, 0: (block,)}),))
                     for at, block in enumerate(blocks))
