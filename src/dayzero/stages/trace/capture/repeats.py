"""Which modules need not run because another one that ran makes the same calls, and the proof.

A module may be left out when one of the same place (its path differs in numbers only) has run in the same step, and
these are equal: classes, shapes and dtypes of parameters and buffers, and all plain attributes, of it and of all inside
it; what the config's lists say of the two layers; the arguments; the items of caches that the other touched. What the
other asked of its layer's number must have the same answers for this one. The other must have changed nothing but its
results and its own layer's items of caches, which are then made anew here. Where any of this cannot be shown, the
module runs. Needs torch.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .indices import Guard, Index, Touch, Tracked
from .signatures import SCALARS, Signatures, first_number, is_state, leaves, numbered, rebuilt

PROOF = ("same classes, shapes and dtypes of parameters and buffers, settings, config entries, arguments, cache state, "
         "and answers about the layer's number")

MOST = 4
"""Most modules to compare with that are the same but for what they saw in caches; the last are kept."""


class InconsistentError(Exception):
    """A module that was left out ran a second time in another way: the step has to run in full."""


class Result:
    """A tensor to make anew, or the position of an argument to hand on."""

    def __init__(self, tensor: torch.Tensor | None, argument: int = -1) -> None:
        self.tensor, self.argument = tensor, argument


class Entry(NamedTuple):
    """What one module did."""

    path: str
    visit: int
    events: tuple[Guard | Touch, ...]
    after: tuple[tuple[Tracked, Any], ...]
    """Items of its own layer as it left them."""
    results: Any


class Ticket(NamedTuple):
    """A module that is about to run: what to compare its results with."""

    key: Hashable
    arguments: list[Any]
    start: int
    faults: int


class Repeats:
    """Remembers what ran in one step."""

    def __init__(self, model: torch.nn.Module, modules: Mapping[str, torch.nn.Module], signatures: Signatures) -> None:
        """`modules`: all modules of the model by their dotted paths."""
        self._signatures = signatures
        self._log = signatures.log
        self._numbers = list(_own_numbers(modules))
        self._lists = list(_lists(getattr(model, "config", None)))
        self._entries: dict[Hashable, list[Entry]] = {}
        self._sources: dict[str, str] = {}
        self._visits: dict[str, int] = {}
        self._faults = 0
        self._settings: list[Hashable] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Layers' numbers tell what they are used for while it lasts."""
        for module, name, number in self._numbers:
            module.__dict__[name] = Index.of(number, self._log)
        try:
            yield
        finally:
            for module, name, number in self._numbers:
                module.__dict__[name] = number

    def begin(self) -> None:
        """Forget everything: another step begins."""
        self._entries.clear()
        self._sources.clear()
        self._visits.clear()
        self._log.clear()
        self._settings.clear()
        self._log.active = 0

    def repeats(self) -> dict[str, tuple[str, ...]]:
        """Path of a module that ran -> paths of those left out. Raises InconsistentError when one ran more often."""
        found: dict[str, list[str]] = defaultdict(list)
        for path, source in self._sources.items():
            if self._visits[path] != self._visits[source]:
                raise InconsistentError(path)
            found[source].append(path)
        return {source: tuple(paths) for source, paths in found.items()}

    def enter(self, module: torch.nn.Module, path: str, args: Any, kwargs: Any) -> tuple[Ticket | None, Entry | None]:
        """A module is called: a ticket if what it does may count for others, and the one that did the same."""
        visit = self._visits.get(path, 0)
        self._visits[path] = visit + 1
        self._settings.append(self._signatures.settings(module))
        if not _may_repeat(module, path):
            return None, None
        number = first_number(path)
        entries = tuple(items[number] for items in self._lists if number is not None and number < len(items))
        key = (numbered(path), self._signatures.structure(module), self._signatures.setting(entries),
               self._signatures.state((args, kwargs)))  # fmt: skip
        for entry in self._entries.get(key, ()):
            if self._matches(entry, path, number or 0, visit):
                self._settings.pop()
                return None, entry
        if path in self._sources:
            raise InconsistentError(path)
        self._log.active += 1
        return Ticket(key, list(leaves((args, kwargs))), len(self._log), self._faults), None

    def leave(self, module: torch.nn.Module, path: str, args: Any, kwargs: Any, ticket: Ticket | None, out: Any,
              failed: bool) -> None:
        """The module has run, or failed to."""
        if self._settings.pop() != self._signatures.settings(module):
            self._faults += 1
        if ticket is None:
            return
        self._log.active -= 1
        entry = None if failed else self._entry(path, args, kwargs, ticket, out)
        if entry is not None:
            self._entries[ticket.key] = [*self._entries.get(ticket.key, [])[1 - MOST:], entry]
        if not self._log.active:
            self._log.clear()

    def apply(self, entry: Entry, path: str, args: Any, kwargs: Any) -> Any:
        """Results of a module that is left out; its layer's items of caches become what the other's became."""
        number = first_number(path) or 0
        self._sources[path] = entry.path
        for items, after in entry.after:
            item = list.__getitem__(items, number)
            fresh = _fresh(after)
            if is_state(item) and not isinstance(item, SCALARS):
                vars(item).update(vars(fresh))
            else:
                list.__setitem__(items, number, fresh)
        if self._log.active:
            self._log.extend(entry.events)
        given = list(leaves((args, kwargs)))

        def make(result: Any) -> Any:
            if not isinstance(result, Result):
                return result
            return given[result.argument] if result.tensor is None else _fresh(result.tensor)

        return rebuilt(entry.results, make)

    def _matches(self, entry: Entry, path: str, number: int, visit: int) -> bool:
        if entry.path == path or entry.visit != visit or (visit and self._sources.get(path) != entry.path):
            return False
        for event in entry.events:
            if isinstance(event, Guard):
                if not event.holds(number):
                    return False
                continue
            position = number if event.key is None else event.key
            item = list.__getitem__(event.items, position) if position < len(event.items) else None
            if self._signatures.value(item) != event.before:
                return False
        return True

    def _entry(self, path: str, args: Any, kwargs: Any, ticket: Ticket, out: Any) -> Entry | None:
        if self._faults != ticket.faults or ticket.key[3] != self._signatures.state((args, kwargs)):  # type: ignore[index]
            return None
        events = _first(self._log[ticket.start:])
        number = first_number(path) or 0
        after = []
        for event in events:
            if isinstance(event, Guard):
                continue
            if event.key is None:
                after.append((event.items, _fresh(list.__getitem__(event.items, number))))
            elif self._signatures.value(list.__getitem__(event.items, event.key)) != event.before:
                return None
        try:
            results = rebuilt(out, lambda value: _result(value, ticket.arguments))
        except (TypeError, ValueError):
            return None
        return Entry(path, self._visits[path] - 1, events, tuple(after), results)


def _may_repeat(module: torch.nn.Module, path: str) -> bool:
    """Not the small ones: to compare them costs as much as to run them."""
    last = path.rpartition(".")[2]
    return first_number(path) is not None and (bool(module._modules) or last.isdigit())


def _first(events: list[Guard | Touch]) -> tuple[Guard | Touch, ...]:
    """Of the touches of one item the first, which saw it as it was."""
    kept: dict[Hashable, Guard | Touch] = {}
    for event in events:
        key = (id(event.items), event.key) if isinstance(event, Touch) else (repr(event.steps), None)
        kept.setdefault(key, event)
    return tuple(kept.values())


def _result(value: Any, arguments: list[Any]) -> Any:
    if isinstance(value, SCALARS) and not isinstance(value, Index):
        return value
    position = next((at for at, argument in enumerate(arguments) if argument is value), None)
    if position is not None:
        return Result(None, position)
    if isinstance(value, torch.Tensor) and value.device.type == "meta" and type(value) is torch.Tensor:
        return Result(_fresh(value))
    raise TypeError("a result that cannot be made anew")


def _fresh(value: Any) -> Any:
    """A copy with tensors of their own."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta":
            return value.clone()
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, Tracked):
        return value
    if isinstance(value, (list, tuple, dict)):
        return rebuilt(value, _fresh) if value else copy.copy(value)
    if is_state(value) and not isinstance(value, SCALARS):
        made = copy.copy(value)
        vars(made).update({name: _fresh(item) for name, item in vars(value).items()})
        return made
    return value


def _lists(config: Any, seen: frozenset[int] = frozenset()) -> Iterator[list[Any]]:
    """Lists of a config that have an entry for each layer, those of nested configs too; not plain lists of numbers of
    layers."""
    kept = getattr(config, "__dict__", {})
    layers = kept.get("num_hidden_layers")
    for item in kept.values():
        if isinstance(item, (list, tuple)) and isinstance(layers, int) and len(item) >= layers > 0:
            if list(item) != list(range(len(item))):
                yield list(item)
        elif hasattr(item, "model_type") and id(item) not in seen:
            yield from _lists(item, seen | {id(config)})


def _own_numbers(modules: Mapping[str, torch.nn.Module]) -> Iterator[tuple[torch.nn.Module, str, int]]:
    """Attributes that hold the number of the layer that the module is in: in all modules of a class that have it."""
    classes: dict[type, list[tuple[str, torch.nn.Module]]] = defaultdict(list)
    for path, module in modules.items():
        classes[type(module)].append((path, module))
    for kind, same in classes.items():
        names = [name for name, value in same[0][1].__dict__.items() if type(value) is int]
        if kind.__module__.startswith("torch.") or not names:
            continue
        numbered = [(module, first_number(path)) for path, module in same]
        if len({number for _, number in numbered}) > 1:
            for name in names:
                if all(type(module.__dict__.get(name)) is int and module.__dict__[name] == number
                       for module, number in numbered):
                    yield from ((module, name, number or 0) for module, number in numbered)
