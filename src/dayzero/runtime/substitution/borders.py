"""Watches the borders of a model's modules: every tensor that one takes or gives, with who computed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from dayzero.runtime.recording.taking import role
from dayzero.runtime.recording.values import arguments, slots, variant
from dayzero.schema.golden import Kind, What

from .places import Place
from .slots import changed


class Call(NamedTuple):
    """One call of a module."""

    name: str
    """Path of the module; empty: the model."""
    number: int
    """How often it was called before with the same texts."""
    asked: str = ""
    """The texts among its arguments, which recordings name with the slots (`values.variant`)."""


class Given(NamedTuple):
    """What a module is called with."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class Visit(Protocol):
    """What is done at a border."""

    def __call__(self, place: Place, by: Call, tensor: torch.Tensor) -> torch.Tensor:
        """`by`: whose code computed the tensor. Returns what is to be taken instead, or the same."""
        ...


class Borders:
    """While it is entered, `visit` is called for every tensor that would be recorded at the border of a module under
    `root`, in the order of execution. Names are those under `root`, after `prefix`; `kinds`: of all modules."""

    def __init__(self, root: nn.Module, visit: Visit, kinds: Mapping[str, Kind], *, prefix: str = "") -> None:
        self._root, self._visit, self._kinds, self._prefix = root, visit, kinds, prefix
        self._handles: list[Any] = []
        self.running: list[Call] = []
        """Calls that have not ended, the innermost last."""
        self._calls: Counter[tuple[str, str]] = Counter()
        self.calls: dict[Call, Given] = {}
        """What was taken instead, of each call."""

    def expect(self, call: Call) -> None:
        """Of calls of this module, this one comes first."""
        self._calls[call.name, call.asked] = call.number

    def __enter__(self) -> Borders:
        for path, module in self._root.named_modules():
            name = ".".join(filter(None, (self._prefix, path)))
            self._handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave(name), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, name: str) -> Any:
        def enter(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
            taken = arguments(module, args, named)
            asked = variant(taken)
            call = Call(name, self._calls[name, asked], asked)
            self._calls[name, asked] += 1
            by = self.running[-1] if self.running else Call("", 0)
            made = self._visited(call, "input", by, taken)
            if made is not taken:
                args, named = _given(taken, made, args, named)
            self.calls[call] = Given(module, args, named)
            self.running.append(call)
            return args, named
        return enter

    def _leave(self, name: str) -> Any:
        def leave(module: nn.Module, args: Any, named: Any, output: Any) -> Any:
            call = self.running.pop()
            return self._visited(call, "output", call, output)
        return leave

    def _visited(self, call: Call, what: What, by: Call, value: Any) -> Any:
        beside = [tensor for _, tensor in slots(value)]
        kind = self._kinds.get(call.name, "other")

        def change(slot: str, tensor: torch.Tensor) -> torch.Tensor:
            taken = role(kind, what, slot, tensor, beside)
            if taken is None:
                return tensor
            name = f"{taken[1]}@{call.asked}" if call.asked else taken[1]
            return self._visit(Place(call.name, taken[0], name, call.number), by, tensor)
        return changed(value, change)


def _given(taken: Mapping[str, Any], made: Mapping[str, Any], args: tuple[Any, ...], named: Mapping[str, Any]
           ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as they were given, with what was made of them."""
    names = list(taken)
    return tuple(made[names[number]] for number in range(len(args))), {name: made[name] for name in named}
