"""The module tree, and which layers are alike. Needs torch."""

from __future__ import annotations

import torch

from dayzero.schema import LayerKind, ModelSpec, ModuleNode

Structure = tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...]


def module_tree(model: torch.nn.Module) -> tuple[ModuleNode, ...]:
    """All modules in pre-order; a tied parameter belongs to the first module that has it."""
    seen: set[int] = set()
    nodes = []
    for path, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in seen]
        seen.update(map(id, own))
        nodes.append(ModuleNode(path=path, type=type(module).__name__, parameters=sum(p.numel() for p in own)))
    return tuple(nodes)


def layer_kinds(model: torch.nn.Module, spec: ModelSpec) -> tuple[LayerKind, ...]:
    """Layers grouped by the kinds that the config states and by the structure that the code builds (module classes and
    parameter shapes). Neither is enough: layers that differ in their mask only have one structure."""
    built = _layers(model, len(spec.layers))
    groups: dict[tuple[str, Structure], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        structure = _structure(built[index]) if built is not None else ()
        groups.setdefault((f"{layer.attention} + {layer.feed_forward}", structure), []).append(index)
    names = [name for name, _ in groups]
    kinds = []
    for position, ((name, _), indices) in enumerate(groups.items()):
        nth = names[:position].count(name) + 1
        label = f"{name} ({nth})" if names.count(name) > 1 else name
        kinds.append(LayerKind(kind=label, layers=tuple(indices)))
    return tuple(kinds)


def _layers(model: torch.nn.Module, count: int) -> torch.nn.ModuleList | None:
    """The list of decoder layers: of the lists with as many modules as the model has layers, the largest."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return max(lists, key=lambda module: sum(p.numel() for p in module.parameters()), default=None)


def _structure(layer: torch.nn.Module) -> Structure:
    return tuple((path, type(module).__name__, tuple(tuple(p.shape) for p in module.parameters(recurse=False)))
                 for path, module in layer.named_modules())
