"""One stage: a model of which only some layers are left, and what its pass takes from the stage before and gives on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from dayzero.errors import StageError
from dayzero.runtime.building import decoder_layers

from .flow import Flow, Node, Step
from .outputs import Output, Sizes


@dataclass(frozen=True)
class Call:
    """One micro-batch."""

    input_ids: torch.Tensor
    """[sequences, tokens]."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the model is given beside them by name."""
    around: Callable[[], AbstractContextManager[Mapping[str, Any]]] | None = None
    """Entered while the model runs; gives more arguments."""

    @contextmanager
    def entered(self) -> Iterator[dict[str, Any]]:
        """All arguments but the ids, for as long as the model runs."""
        with self.around() if self.around else nullcontext({}) as more:
            yield {**self.arguments, **more}


_PLAIN = (bool, int, float, str, tuple, type(None))
"""What outer code reads from a layer without calling it."""


class Part:
    """Cuts a whole model in place: what a stage does not hold becomes placeholders, without parameters."""

    def __init__(self, model: Any, flow: Flow, stages: Sequence[tuple[int, int]], stage: int) -> None:
        """`stages`: [first layer, end) of each. Raises NotPossible where the layers cannot be cut."""
        flow.check(tuple(stages))
        self.model, self.flow = model, flow
        self.whole_forward = model.forward
        """The model's own, whatever is put in its place."""
        self.stage, self.stages = stage, len(stages)
        self.first, self.end = stages[stage]
        self.last = stage == len(stages) - 1
        self.receives = _crossing(flow, stages, stage)
        self.sends = () if self.last else _crossing(flow, stages, stage + 1)
        self.cache: Any = None
        """That the layers were given in the last pass: the model's code may have made it."""
        self._received: dict[Node, list[torch.Tensor]] = {}
        self._outputs: dict[Node, Any] = {}
        self._size, self._device = (0, 0), torch.device("cpu")
        self._cut()

    @property
    def layers(self) -> range:
        """Numbers of the decoder layers that are left."""
        return range(self.first, self.end)

    def run(self, call: Call, received: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """One pass: the model's own, up to the last layer that is here. `received` and what comes back are tensors in
        the order of `boundary`; of the last stage, the logits."""
        self._size, self._device = (call.input_ids.shape[0], call.input_ids.shape[1]), call.input_ids.device
        values = iter(received)
        self._received = {node: [next(values) for _ in self.output(node).tensors] for node in self.receives}
        self._outputs = {}
        try:
            with call.entered() as arguments:
                output = self.whole_forward(input_ids=call.input_ids, **arguments)
        except _Reached:
            for node in sorted(each for each in self.flow.lengths if each >= self.end):
                _lengthen(node, self._size, self.output(node), [self.cache], self._device)
            return tuple(each.contiguous() for node in self.sends for each in self._sent(node))
        finally:
            self._received = {}
        if not self.last:
            raise StageError("the model's code ended before the layers that this stage does not hold",
                             "report this model: its layers were seen to run in order")
        return (output.logits,)

    @property
    def logits(self) -> Sizes:
        """Of the whole model's, on any stage."""
        return self.flow.steps[-1].output.tensors[0]

    def boundary(self, nodes: Iterable[Node]) -> tuple[Sizes, ...]:
        """The tensors that cross between two stages."""
        return tuple(sizes for node in nodes for sizes in self.output(node).tensors)

    def output(self, node: Node) -> Output:
        """What a node gives."""
        return self._step(node).output

    def _step(self, node: Node) -> Step:
        return next(step for step in self.flow.steps if step.node == node)

    def _sent(self, node: Node) -> list[torch.Tensor]:
        if node in self._received:
            return self._received[node]
        flat = torch.utils._pytree.tree_leaves(self._outputs[node])
        return [value for value in flat if isinstance(value, torch.Tensor)]

    def _cut(self) -> None:
        layers = decoder_layers(self.model)
        within = {id(module) for module in layers.modules()}
        around = {id(module) for module in self.model.modules()
                  if any(child is layers for child in module.modules())} | {id(layers)}
        steps = {step.node: step for step in self.flow.steps}
        owners = {name: module for name, module in self.model.named_modules() if id(module) not in within
                  and id(module) not in around and any(each is not None for each in module._parameters.values())}
        absent = {number: layer for number, layer in enumerate(layers) if number not in self.layers}
        for number, layer in absent.items():
            layers[number] = _Absent(layer, steps[number], self)
        for name, module in owners.items():
            if not self._holds(name, module, steps.get(name)):
                _replace(self.model, module, _Absent(module, steps.get(name), self))
        for path, module in self.model.named_modules():
            if id(module) in around:
                for name in [key for key, each in module._parameters.items() if each is not None]:
                    if not self._holds_parameter(f"{path}.{name}" if path else name):
                        module._parameters[name] = None
        layers[self.first].register_forward_pre_hook(self._see, with_kwargs=True)
        for node in self.sends:
            module = layers[node] if isinstance(node, int) else owners[node]
            if not isinstance(module, _Absent) and node not in self.receives:
                module.register_forward_hook(self._keeping(node))

    def _holds(self, name: str, module: nn.Module, step: Step | None) -> bool:
        """Whether a module outside of the layers is needed here."""
        called = step is not None and _runs(step, self.first, self.end, self.last, self.flow.layers)
        return called or any(self._holds_parameter(f"{name}.{own}") for own in module._parameters)

    def _holds_parameter(self, name: str) -> bool:
        """Whether one is used here by itself."""
        return any(position < self.end or self.last for position in self.flow.direct.get(name, ()))

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.cache = next((each for each in (*args, *kwargs.values()) if _is_cache(each)), None)

    def _keeping(self, node: Node) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self._outputs[node] = output

        return keep

    def stand_in(self, step: Step, named: Mapping[str, Any], values: Iterable[Any]) -> Any:
        """What a module that is absent gives: what was received, or what nobody may use; ends the pass when all that
        is here has run."""
        if step.position >= self.end:
            raise _Reached
        if step.node in self.flow.lengths:
            _lengthen(step.node, self._size, self.output(step.node), [*values, *named.values()], self._device)
        tensors = self._received.get(step.node)
        if tensors is None:
            tensors = [sizes.wrong(*self._size, self._device) for sizes in step.output.tensors]
        return step.output.with_values(tensors, named)


class _Reached(Exception):  # noqa: N818 (no error: it ends a pass)
    """The pass has come to what another stage does."""


class _Absent(nn.Module):
    """In the place of a module that another stage holds. What outer code asks it for is answered as by that one."""

    def __init__(self, module: nn.Module, step: Step | None, part: Part) -> None:
        super().__init__()
        known = vars(module)
        kind = {name: value for each in reversed(type(module).__mro__) for name, value in vars(each).items()
                if isinstance(value, _PLAIN) and not name.startswith("__")}
        own = set(vars(nn.Module())) | {"training"}
        self.__dict__.update({name: value for name, value in {**kind, **known}.items()
                              if name not in own and not isinstance(value, (torch.Tensor, nn.Module))})
        self._answer = partial(part.stand_in, step) if step is not None else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._answer is None:
            raise StageError("a module was called that no trial has called", "choose a layout with pp=1")
        return self._answer(kwargs, args)


def _crossing(flow: Flow, stages: Sequence[tuple[int, int]], stage: int) -> tuple[Node, ...]:
    """Nodes of earlier stages whose results this stage or a later one needs, in the order in which they run."""
    first, needed, here = stages[stage][0], set(flow.final), set()
    earlier = [step.node for step in flow.steps if step.position < first]
    for step in flow.steps:
        if step.position >= first:
            needed |= step.needs
            here.add(step.node)
    return tuple(node for node in earlier if node in needed)


def _runs(step: Step, first: int, end: int, last: bool, layers: int) -> bool:
    """Whether the stage runs a node."""
    return first <= step.position < end or (last and step.position == layers)


def _replace(model: nn.Module, module: nn.Module, other: nn.Module) -> None:
    """Under all its names."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is module:
                parent._modules[name] = other


def _lengthen(node: Node, size: tuple[int, int], output: Output, values: Iterable[Any], device: torch.device) -> None:
    """A cache is told of new tokens by keys and values of one head and one channel, as the layer would tell it."""
    cache = next((each for each in values if _is_cache(each)), None)
    if cache is not None and not getattr(cache, "keeps_lengths", False):
        dtype = output.tensors[0].dtype if output.tensors else torch.float32
        nothing = torch.zeros((size[0], 1, size[1], 1), dtype=dtype, device=device)
        cache.update(nothing, nothing, node)


def _is_cache(value: Any) -> bool:
    return callable(getattr(value, "update", None)) and not isinstance(value, (torch.Tensor, Mapping))
