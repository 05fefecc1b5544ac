"""The module tree, and which layers are alike. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from dayzero.schema import LayerKind, ModelSpec, ModuleNode

from .capture.captured import Captured
from .capture.repeats import PROOF
from .capture.signatures import Signatures, first_number

Structure = tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...]


class Tree:
    """The modules of a model by their paths; inside a layer, modules with numbers that are alike (experts) are one."""

    def __init__(self, model: torch.nn.Module, signatures: Signatures) -> None:
        self._signatures = signatures
        self._first: dict[str, str] = {}
        self._seen: set[int] = set()
        self.nodes: tuple[ModuleNode, ...] = tuple(self._walk(model, "", "", 1))

    def shown(self, path: str) -> str:
        """Path with `*` for the numbers of modules that are alike."""
        concrete = ""
        parts = []
        for part in path.split(".") if path else ():
            concrete = f"{concrete}.{part}" if concrete else part
            first = self._first.get(concrete)
            parts.append(part if first is None else "*")
            concrete = concrete if first is None else first
        return ".".join(parts)

    def _walk(self, module: torch.nn.Module, path: str, shown: str, count: int) -> Iterator[ModuleNode]:
        """Pre-order; a tied parameter belongs to the first module that has it."""
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in self._seen]
        self._seen.update(map(id, own))
        yield ModuleNode(path=shown, type=type(module).__name__, count=count,
                         parameters=count * sum(p.numel() for p in own))
        groups: dict[object, list[str]] = {}
        for name, child in module._modules.items():
            if child is not None:
                many = name.isdigit() and first_number(path) is not None
                groups.setdefault(self._signatures.structure(child) if many else name, []).append(name)
        for names in groups.values():
            below = [f"{path}.{name}" if path else name for name in names]
            if len(names) > 1:
                self._first.update(dict.fromkeys(below, below[0]))
            label = "*" if len(names) > 1 else names[0]
            child = module._modules[names[0]]
            assert child is not None
            yield from self._walk(child, below[0], f"{shown}.{label}" if shown else label, count * len(names))


def layer_kinds(model: torch.nn.Module, spec: ModelSpec, runs: Iterable[Captured] = ()) -> tuple[LayerKind, ...]:
    """Layers grouped by the kinds that the config states and by the structure that the code builds (module classes and
    parameter shapes). Neither is enough: layers that differ in their mask only have one structure. `runs` tell which
    layers ran."""
    found = _layers(model, len(spec.layers))
    prefix, built = found if found is not None else ("", None)
    groups: dict[tuple[str, Structure], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        structure = _structure(built[index]) if built is not None else ()
        groups.setdefault((f"{layer.attention} + {layer.feed_forward}", structure), []).append(index)
    names = [name for name, _ in groups]
    left_out = _left_out(prefix, list(runs))
    kinds = []
    for position, ((name, _), indices) in enumerate(groups.items()):
        nth = names[:position].count(name) + 1
        label = f"{name} ({nth})" if names.count(name) > 1 else name
        others = [index for index in indices if index in left_out]
        ran = sorted({index for index in indices if index not in left_out} | {left_out[index] for index in others})
        kinds.append(LayerKind(kind=label, layers=tuple(indices), traced=tuple(ran) if others else (),
                               proof=PROOF if others else ""))
    return tuple(kinds)


def _left_out(prefix: str, runs: list[Captured]) -> dict[int, int]:
    """Layers that ran in none of the runs -> one that did what they do."""
    found = []
    for run in runs:
        sources = {other: path for path, others in run.repeats.items() for other in others}
        found.append({int(other.rpartition(".")[2]): int(path.rpartition(".")[2]) for other, path in sources.items()
                      if other.rpartition(".")[0] == prefix})
    shared = set.intersection(*map(set, found)) if found else set()
    return {layer: found[0][layer] for layer in shared}


def _layers(model: torch.nn.Module, count: int) -> tuple[str, torch.nn.ModuleList] | None:
    """Path and modules of the decoder layers: the largest list with as many modules as the model has layers."""
    lists = [(path, module) for path, module in model.named_modules()
             if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return max(lists, key=lambda pair: sum(p.numel() for p in pair[1].parameters()), default=None)


def _structure(layer: torch.nn.Module) -> Structure:
    return tuple((path, type(module).__name__, tuple(tuple(p.shape) for p in module.parameters(recurse=False)))
                 for path, module in layer.named_modules())
