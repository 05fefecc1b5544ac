"""Which module reads what another one gave, seen in passes through the model's own code.

Parameters are zeros while it runs, one layer at a time, which take no memory: a model of any size is looked at, also
one whose code asks for values. What matters is only where each tensor comes from. Three passes of different sizes show
how shapes follow from the number of sequences and tokens; the second continues the first with its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dayzero.errors import NotPossible
from dayzero.runtime.building import decoder_layers
from dayzero.runtime.building.zeros import storage_of, zeros
from dayzero.runtime.library import LIBRARY_ERRORS, cause

from .outputs import Output, output_of

Node = int | str
"""A decoder layer's number, or the name of another module that has parameters of its own."""
_SIZES = ((2, 5), (2, 1), (3, 4))
"""(sequences, new tokens) of the passes."""
_REFUSAL = "choose a layout with pp=1, or stages that keep these layers together"


@dataclass(frozen=True)
class Step:
    """One call of a node."""

    node: Node
    position: int
    """How many layers were called before."""
    needs: frozenset[Node]
    """Whose results it is given, or what has been made of them outside of all nodes."""
    output: Output


@dataclass(frozen=True)
class Flow:
    """What happens in one pass."""

    layers: int
    """How many there are."""
    steps: tuple[Step, ...]
    """In order; the last step's output is not all of the model's."""
    final: frozenset[Node]
    """Whose results the model's output is made of, outside of all nodes."""
    kept: frozenset[tuple[int, int]]
    """(layer, later layer): the later one reads what the other has kept for itself."""
    direct: Mapping[str, frozenset[int]]
    """Parameter that is used outside of all nodes -> at which positions."""
    lengths: frozenset[int]
    """Layers that tell a cache how many tokens it holds."""

    def check(self, stages: tuple[tuple[int, int], ...]) -> None:
        """Raises NotPossible when the layers cannot be cut there. `stages`: [first layer, end) of each."""
        if [first for first, _ in stages] != [0, *(end for _, end in stages[:-1])] or stages[-1][1] != self.layers:
            raise NotPossible(f"the stages do not hold the {self.layers} layers once each and in order",
                              "give stages that do")
        if any(end <= first for first, end in stages):
            raise NotPossible(f"{len(stages)} stages of {self.layers} layers: one would be empty",
                              "choose a layout with fewer stages")
        for _, end in stages[:-1]:
            if torn := sorted((first, later) for first, later in self.kept if first < end <= later):
                first, later = torn[0]
                raise NotPossible(f"layer {later} reads what layer {first} keeps: both belong in one stage", _REFUSAL)


def observe(model: Any) -> Flow:
    """Of a whole model whose parameters are on the meta device, before and after. Raises NotPossible when its code
    cannot be run so."""
    layers = decoder_layers(model)
    watch = _Watch(model, layers)
    try:
        with torch.no_grad(), watch.watching():
            cache = watch.run(*_SIZES[0], None)
            watch.run(*_SIZES[1], cache)
            watch.run(*_SIZES[2], None)
    except LIBRARY_ERRORS as error:
        raise NotPossible(f"this model cannot be cut into stages: its code does not run on trial: {cause(error)}",
                          "choose a layout with pp=1") from error
    return watch.flow()


def even_split(layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """[first, end) of each stage; the first ones hold one more where it does not divide."""
    share, more = divmod(layers, stages)
    starts = [stage * share + min(stage, more) for stage in range(stages + 1)]
    return tuple(pairwise(starts))


@dataclass
class _Call:
    """One call of a node in one pass."""

    node: Node
    position: int
    needs: frozenset[Node]
    output: Any
    named: Mapping[str, Any]


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows tensors by their storage, which views share. All of them are held: no storage is used twice."""

    def __init__(self, model: Any, layers: nn.ModuleList) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.layers = model, layers
        self.passes: list[tuple[int, int, list[_Call]]] = []
        self.kept: set[tuple[int, int]] = set()
        self.direct: dict[str, set[int]] = {}
        self.final: set[Node] = set()
        self.lengths: set[int] = set()
        self._inside: Node | None = None
        self._position = 0
        self._given: set[int] = set()
        """Storages that the present node was given."""
        self._made_by: dict[int, frozenset[Node]] = {}
        """Storage -> nodes whose results it is made of."""
        self._private: dict[int, Node] = {}
        """Storage -> the node that made it and did not return it."""
        self._held: list[torch.Tensor] = []
        self._weights: dict[int, str] = {}
        """Storages of the present layer's parameters, which are let go after it."""
        self._outer: dict[int, str] = {}
        """Storage -> name of a parameter outside of all layers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [storage_of(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)
                and storage_of(each) not in self._weights]
        self._held += made
        if self._inside is None:
            sources = frozenset().union(*(self._made_by.get(each, frozenset()) for each in given))
            hidden = next((self._private[each] for each in given if each in self._private), None)
            for storage in map(storage_of, made):
                self._made_by[storage] = self._made_by.get(storage, frozenset()) | sources
                if hidden is not None:
                    self._private.setdefault(storage, hidden)
            for storage in given:
                if storage in self._outer:
                    self.direct.setdefault(self._outer[storage], set()).add(self._position)
            return result
        for storage in given:
            self._look(storage)
        for storage in map(storage_of, made):
            if storage not in self._given:
                self._private[storage] = self._inside
        return result

    def _look(self, storage: int) -> None:
        """Whether the present layer reads what another one has kept."""
        owner = self._private.get(storage)
        if isinstance(owner, int) and isinstance(self._inside, int) and owner != self._inside:
            self.kept.add((min(owner, self._inside), max(owner, self._inside)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, layers and modules outside of them that have parameters of their own are nodes."""
        inside = {id(module) for module in self.layers.modules()}
        nodes: dict[Node, nn.Module] = dict(enumerate(self.layers))
        nodes |= {name: module for name, module in self.model.named_modules()
                  if id(module) not in inside and any(each is not None for each in module._parameters.values())
                  and all(each is not self.layers for each in module.modules())}
        for node, module in nodes.items():
            module.forward = self._watched(node, module, module.forward)
        try:
            with zeros(self.model, but=inside) as names:
                self._outer = names
                yield
        finally:
            for module in nodes.values():
                del module.forward

    def _watched(self, node: Node, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside is not None:
                return forward(*args, **kwargs)
            storages = [storage_of(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            self._given = set(storages)
            needs = frozenset().union(*(self._made_by.get(each, frozenset()) for each in storages))
            self._inside = node
            for storage in storages:
                self._look(storage)
            position = self._position
            try:
                with _weights(node, module) as self._weights:
                    output = forward(*args, **kwargs)
            finally:
                self._inside, self._weights = None, {}
            self._position += isinstance(node, int)
            for value in tree_leaves(output):
                if isinstance(value, torch.Tensor):
                    self._private.pop(storage_of(value), None)
                    self._made_by[storage_of(value)] = frozenset((node,))
            self.passes[-1][2].append(_Call(node, position, needs, output, kwargs))
            return output

        return call

    def run(self, sequences: int, tokens: int, cache: Any) -> Any:
        """One pass; its cache."""
        self.passes.append((sequences, tokens, []))
        self._position = 0
        named = {"cache" if _takes(self.model, "cache") else "past_key_values": cache} if cache is not None else {}
        plain = None if cache is None else getattr(cache, "update", None)
        if plain is not None:
            cache.update = self._counting(plain)
        try:
            with self:
                ids = torch.zeros((sequences, tokens), dtype=torch.long)
                output = self.model(input_ids=ids, use_cache=True, **named)
        finally:
            if plain is not None:
                del cache.update
        self.final |= self._made_by.get(storage_of(output.logits), frozenset())
        return next((output[name] for name in ("cache", "past_key_values") if output.get(name) is not None), None)

    def _counting(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if isinstance(self._inside, int):
                self.lengths.add(self._inside)
            return update(*args, **kwargs)

        return counted

    def flow(self) -> Flow:
        """Of all passes. Raises NotPossible when they went different ways."""
        order = [call.node for call in self.passes[0][2]]
        if any([call.node for call in calls] != order for _, _, calls in self.passes):
            raise NotPossible("this model's code calls other layers for other inputs: it cannot be cut into stages",
                              "choose a layout with pp=1")
        if [node for node in order if isinstance(node, int)] != list(range(len(self.layers))):
            raise NotPossible("this model's layers do not run once each and in order: it cannot be cut into stages",
                              "choose a layout with pp=1")
        steps = []
        for index, node in enumerate(order):
            calls = [(sequences, tokens, passed[index]) for sequences, tokens, passed in self.passes]
            name = f"layer {node}" if isinstance(node, int) else node
            steps.append(Step(
                node, calls[0][2].position, frozenset().union(*(call.needs for _, _, call in calls)),
                output_of(name, [(sequences, tokens, call.output, call.named) for sequences, tokens, call in calls])))
        return Flow(len(self.layers), tuple(steps), frozenset(self.final), frozenset(self.kept),
                    {name: frozenset(positions) for name, positions in self.direct.items()}, frozenset(self.lengths))


def _weights(node: Node, module: nn.Module) -> AbstractContextManager[dict[int, str]]:
    """Those of a layer; of other nodes they are there."""
    return zeros(module) if isinstance(node, int) else nullcontext({})


def _takes(model: Any, name: str) -> bool:
    import inspect

    return name in inspect.signature(type(model).forward).parameters
