"""What each module of a model is, by its structure, and which ones are recorded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from dayzero.errors import UsageError, did_you_mean
from dayzero.runtime.sharding.experts import find
from dayzero.schema.golden import Kind

DEFAULT, LEAVES, ALL = "default", "leaves", "all"
_MATRIX = 2


def kinds(model: nn.Module) -> dict[str, Kind]:
    """{path: kind} of all modules; the model's own path is empty.

    Layers: members of the outermost lists of modules. Experts: as in `sharding.experts`; of a list each one. Router:
    has a matrix with a row for each expert, beside these. Attention and feed-forward: parts of a layer with matrices;
    the latter takes one argument or holds experts. Norm: a leaf with vectors only. Linear: a leaf with a matrix.
    """
    modules = dict(model.named_modules())
    made: dict[str, Kind] = dict.fromkeys(modules, "other")
    layers = list(_layers(modules))
    experts = [each for layer in layers for each in find(modules[layer], layer)]
    for name, module in modules.items():
        if not _children(module):
            made[name] = _leaf(module)
    for layer in layers:
        made[layer] = "layer"
        for name in _parts(modules, layer):
            made[name] = "feed_forward" if any(each.name == name or each.holds(name) or each.name.startswith(f"{name}.")
                                               for each in experts) or _takes_one(modules[name]) else "attention"
    for each in experts:
        _mark_experts(made, modules, each.name, each.count, each.packed)
    _mark_ends(made, modules, model)
    made[""] = "model"
    return made


def selected(model: nn.Module, select: str | Sequence[str], layers: Sequence[int], found: dict[str, Kind]) -> list[str]:
    """Paths of the modules to record, the model first. `select`: default (all that has a kind, and leaves
    with weights or outside of layers), leaves, all, or patterns of paths or kinds such as `*.mlp`, `layer`; of `layers`
    only where some are given.

    Raises UsageError when a pattern matches nothing, and for a layer that the model does not have.
    """
    return _in_layers(_chosen(model, select, found), layers, found)


def _chosen(model: nn.Module, select: str | Sequence[str], found: dict[str, Kind]) -> list[str]:
    modules = dict(model.named_modules())
    if select == ALL:
        return list(modules)
    if select == LEAVES:
        return ["", *(name for name, module in modules.items() if name and not _children(module))]
    if select in (DEFAULT, (DEFAULT,)):
        layers = {name for name, kind in found.items() if kind == "layer"}
        experts = {name for name, kind in found.items() if kind == "experts"}
        return [name for name, kind in found.items() if not _below(name, experts) and (
                kind != "other" or (not _children(modules[name])
                                    and (modules[name]._parameters or not _below(name, layers))))]
    patterns = [select] if isinstance(select, str) else list(select)
    made = [""]
    for pattern in patterns:
        own = [name for name, kind in found.items() if name and (fnmatchcase(name, pattern) or kind == pattern)]
        if not own and pattern != "model":
            raise UsageError(f"no module of the model is named like {pattern!r}",
                             f"{did_you_mean(pattern, modules)}patterns are like model.layers.*.mlp, or a kind: layer, "
                             "attention, feed_forward, experts, router, norm, linear, embedding, head")
        made += own
    return list(dict.fromkeys(made))


def _in_layers(names: list[str], layers: Sequence[int], found: dict[str, Kind]) -> list[str]:
    """Without the modules of other layers than these; all when there are none."""
    lists: dict[str, list[str]] = {}
    for name, kind in found.items():
        if kind == "layer":
            lists.setdefault(name.rpartition(".")[0], []).append(name)
    every = max(lists.values(), key=len, default=[])
    if beyond := [number for number in layers if not 0 <= number < len(every)]:
        raise UsageError(f"there is no layer {beyond[0]}: the model has {len(every)}",
                         f"give numbers from 0 to {len(every) - 1}")
    left = set(every) - {every[number] for number in layers} if layers else set()
    return [name for name in names if name not in left and not _below(name, left)]


def _below(name: str, outer: Sequence[str] | set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in outer for count in range(1, len(parts)))


def _layers(modules: dict[str, nn.Module]) -> Iterator[str]:
    """Members of the outermost lists, that have parts of their own."""
    lists: list[str] = []
    for name, module in modules.items():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and not _below(name, set(lists)):
            own = [f"{name}.{number}" for number in range(len(module))]
            if isinstance(module, nn.ModuleList) and any(_children(modules[each]) for each in own if each in modules):
                lists.append(name)
                yield from (each for each in own if each in modules)


def _parts(modules: dict[str, nn.Module], layer: str) -> Iterator[str]:
    """Parts of a layer with parts and matrices of their own, at any depth; a list or a dictionary is none itself."""
    for child, module in modules[layer].named_modules():
        if child and _children(module) and not isinstance(module, nn.ModuleList | nn.ModuleDict) and any(
                each.dim() >= _MATRIX for each in module.parameters()):
            yield f"{layer}.{child}"


def _mark_experts(made: dict[str, Kind], modules: dict[str, nn.Module], name: str, count: int, packed: bool) -> None:
    own = [name] if packed else [each for number in range(count) if (each := f"{name}.{number}") in modules]
    made |= dict.fromkeys(own, "experts")
    around = name.rpartition(".")[0]
    for beside, module in modules.items():
        if beside.startswith(f"{around}.") and not beside.startswith(f"{name}.") and beside != name and any(
                each is not None and each.dim() == _MATRIX and each.shape[0] == count
                for each in module._parameters.values()):
            made[beside] = "router"


def _mark_ends(made: dict[str, Kind], modules: dict[str, nn.Module], model: Any) -> None:
    """Embedding and head, as the library's models say them."""
    names = {id(module): name for name, module in modules.items()}
    for kind, ask in (("embedding", "get_input_embeddings"), ("head", "get_output_embeddings")):
        try:
            module = getattr(model, ask)()
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if id(module) in names:
            made[names[id(module)]] = kind  # type: ignore[assignment]


def _leaf(module: nn.Module) -> Kind:
    own = [each for each in module._parameters.values() if each is not None]
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, nn.Linear) or any(each.dim() == _MATRIX for each in own):
        return "linear"
    if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm) or (own and all(each.dim() == 1 for each in own)):
        return "norm"
    return "other"


def _takes_one(module: nn.Module) -> bool:
    """Whether its forward takes one argument: what mixes tokens takes masks, positions or a cache besides."""
    asked = [each for each in inspect.signature(module.forward).parameters.values()
             if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return len(asked) <= 1


def _children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
