"""Listens to a model: which pass is under way, which module is called, and what it takes and gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgspec
import torch
from torch import nn

from dayzero.errors import UsageError
from dayzero.schema.golden import Kind, Pass, Rows, What

from .rows import Sequences
from .stream import Stream
from .taking import Taker, role
from .values import arguments, slots, variant

RowsOf = Callable[[dict[str, Any]], tuple[Rows, ...]]
"""Called with the arguments of the model: which row of the token axis is what."""
OnOutput = Callable[[Pass, str, int, str, torch.Tensor], None]
"""Called with pass, module, number of the call, slot and tensor."""
_UNCOMPILED: Any = torch.compiler.disable


@dataclass
class _Now:
    """The pass that is under way."""

    made: Pass
    root: nn.Module
    given: dict[str, Any]
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By path of the module and what it was asked for."""
    open: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """(number, what was asked for) of the calls that have not ended, by path of the module."""


class Recorder:
    """Hooks on a model. Not to be used by several threads."""

    def __init__(self, model: nn.Module, names: list[str], kinds: dict[str, Kind], stream: Stream, taker: Taker, *,
                 sequences: Sequences, inputs: bool = True, rows: RowsOf | None = None,
                 without: Collection[str] = ()) -> None:
        """`names`: of the modules to record; `inputs`: whether what they take is, too; `without`: those
        that only stand for parts that are elsewhere."""
        self._without = without
        self.model, self.names, self.kinds, self.stream, self.taker = model, names, kinds, stream, taker
        self.sequences = sequences
        self.heard: set[str] = set()
        """Modules that were called."""
        self.on_output: OnOutput | None = None
        self.last: Pass | None = None
        """The newest forward pass."""
        self._modules = dict(model.named_modules())
        self.classes = {name: _class(module) for name, module in self._modules.items()}
        self._inputs, self._rows_of = inputs, rows
        self._passes = self._paused = 0
        self._now: _Now | None = None
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Begin to listen."""
        for name in self.names:
            module = self._modules[name]
            self._handles += [module.register_forward_pre_hook(self._entering(name), with_kwargs=True),
                              module.register_forward_hook(self._leaving(name), with_kwargs=True)]
        self._handles += [self._modules[name].register_forward_hook(self._hide) for name in self._without]

    def _hide(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """What stands for a part gives what was received for it, or no numbers at all."""
        for _, tensor in slots(output):
            if tensor.is_floating_point() and bool(tensor.isnan().all()):
                self.taker.hide(tensor)

    def detach(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._now = [], None
        self.taker.forget()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in here is not recorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def within(self, given: dict[str, Any]) -> Iterator[None]:
        """What runs in here is one call of the model with these arguments, whoever calls its parts."""
        if self.listening:
            self._begin(self.model, given)
            self.heard.add("")
        now = self._now
        try:
            yield
        finally:
            if self._now is now is not None:
                self.close()

    @property
    def listening(self) -> bool:
        """Whether anything is to be recorded now."""
        return not self._paused and self.stream.failed is None

    def open(self, **facts: Any) -> Pass:
        """Begin a pass that is no call of a module."""
        return self._open(Pass(number=self._passes, **facts), self.model, {})

    def close(self) -> None:
        """End it."""
        self._now = None
        self.taker.forget()
        self.stream.pause()

    def _open(self, made: Pass, root: nn.Module, given: dict[str, Any]) -> Pass:
        self._passes += 1
        self._now = _Now(made, root, given)
        self.taker.forget()
        self.stream.begin(made)
        return made

    def _again(self) -> bool:
        """Whether a forward pass runs on the way back, to compute again what was not kept."""
        return bool(torch._C._current_graph_task_id() != -1)

    def _entering(self, name: str) -> Any:
        def enter(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not self.listening or self._again():
                return
            given = arguments(module, args, named)
            if self._now is None or (not name and self._now.root is module):  # the second: the last one was cut short
                self._begin(module, {} if name else given)
            now = self._now
            assert now is not None
            asked = variant(given)
            now.open.setdefault(name, []).append((now.calls[name, asked], asked))
            now.calls[name, asked] += 1
            self.heard.add(name)
            if name and self._inputs:
                self._take_all(name, "input", given)
        return _UNCOMPILED(enter)

    def _leaving(self, name: str) -> Any:
        def leave(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            now = self._now
            if now is None or not now.open.get(name) or not self.listening or self._again():
                return
            self._take_all(name, "output", output)
            now.open[name].pop()
            if module is now.root and not now.open[name]:
                self.sequences.end(now.given, output)
                self.close()
        return _UNCOMPILED(leave)

    def _begin(self, root: nn.Module, given: dict[str, Any]) -> None:
        made = self.sequences.begin(self._passes, given)
        if self._rows_of is not None and given:
            made = msgspec.structs.replace(made, rows=_as_many(self._rows_of(given), made.shape))
        self.last = self._open(made, root, given)

    def _take_all(self, name: str, what: What, value: Any) -> None:
        now = self._now
        assert now is not None
        every = list(slots(value))
        beside = [each for _, each in every]
        for slot, tensor in every:
            taken = role(self.kinds[name], what, slot, tensor, beside)
            if taken is None:
                continue
            call, asked = now.open[name][-1]
            slot = f"{taken[1]}@{asked}" if asked else taken[1]
            self.take(name, taken[0], slot, tensor, call=call)
            if what == "output" and self.on_output is not None:
                self.on_output(now.made, name, call, slot, tensor)

    def take(self, name: str, what: What, slot: str, tensor: torch.Tensor, *, call: int = 0, owner: str | None = None,
             summed: tuple[str, ...] = ()) -> None:
        """A tensor of the pass that is under way. `owner`: the module, where the name is that of a parameter; `summed`:
        degrees over whose ranks it is a term, if the tensor does not say so itself."""
        now, of = self._now, name if owner is None else owner
        assert now is not None
        self.taker.take(now.made, tensor, name=name, module=self.classes[of], kind=self.kinds[of], what=what,
                        slot=slot, call=call, summed=summed)


def _as_many(rows: tuple[Rows, ...], shape: tuple[int, ...]) -> tuple[Rows, ...]:
    """The rows. Raises UsageError when they are not as many as the call has, of which the shape is known."""
    told, count = sum(each.count for each in rows), prod(shape)
    if shape and told != count:
        raise UsageError(f"rows= tells {told} rows of a call with {count}", "tell all of them; padding has sequence -1")
    return rows


def _class(module: nn.Module) -> str:
    """Name of its class, without what was put around it to share its weights."""
    return next(kind.__name__ for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed"))
