"""Pages for a cache object of a release's own code: what it keeps is found by watching it, not known.

Three small calls (two lengths, two batch sizes) tell which of its tensors have a dimension of tokens, which are states
and which dimension is the batch; everything else in the object is taken as it is after a call. For each call an object
is put together from blocks, and what the call added is taken out of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dayzero.errors import NotPossible
from dayzero.runtime.sharding import like, local

from .kinds import ALL, Group, LayerKind
from .states import Slots
from .store import Pages
from .track import Scratch, Track

Where = tuple[Any, ...]
"""Attribute names, keys and indices that lead to a tensor."""


@dataclass(frozen=True)
class Part:
    """One tensor of the object."""

    where: Where
    batch: int
    """Its dimension of sequences."""
    tokens: int = -1
    """Its dimension of tokens; -1 for a state."""


def tensors(value: Any, where: Where = ()) -> Iterator[tuple[Where, torch.Tensor]]:
    """All tensors in an object's attributes, lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield where, value
        return
    for key, inner in _inside(value):
        yield from tensors(inner, (*where, key))


def _inside(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    return list(vars(value).items()) if hasattr(value, "__dict__") and not _foreign(value) else []


def _foreign(value: Any) -> bool:
    """Modules, classes and functions are the model's, not the cache's; so is its config."""
    return isinstance(value, (type, torch.nn.Module)) or callable(value) or hasattr(value, "to_json_string")


def with_tensors(value: Any, found: dict[Where, Any], where: Where = ()) -> Any:
    """A copy of the object with other tensors in it."""
    if where in found:
        return found[where]
    if isinstance(value, dict):
        return type(value)((key, with_tensors(inner, found, (*where, key))) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(with_tensors(inner, found, (*where, index)) for index, inner in enumerate(value))
    if isinstance(value, torch.Tensor) or not hasattr(value, "__dict__") or _foreign(value):
        return value
    made = copy.copy(value)
    for key, inner in vars(value).items():
        setattr(made, key, with_tensors(inner, found, (*where, key)))
    return made


def understand(short: Any, long: Any, wide: Any, *, added: int) -> tuple[Part, ...]:
    """The parts of an object after calls of some tokens, of `added` more, and of as many more with a batch of two
    instead of one. Raises NotPossible for one that keeps something in another way."""
    first, second, third = (dict(tensors(each)) for each in (short, long, wide))
    if not first or not first.keys() == second.keys() == third.keys():
        raise NotPossible("the cache of the release's code keeps other tensors for longer texts", _HINT)
    return tuple(_part(where, first[where].shape, second[where].shape, third[where].shape, added) for where in first)


_HINT = "run it without pages, one sequence at a time"
_FEW, _MORE = 4, 7


def _part(where: Where, short: Sequence[int], long: Sequence[int], wide: Sequence[int], added: int) -> Part:
    name = _name(where)
    if not len(short) == len(long) == len(wide):
        raise NotPossible(f"{name} in the cache of the release's code changes its dimensions", _HINT)
    grown = [index for index, (a, b) in enumerate(zip(short, long, strict=True)) if a != b]
    batches = [index for index, (a, b) in enumerate(zip(long, wide, strict=True)) if a != b]
    if len(batches) != 1 or wide[batches[0]] != 2 * long[batches[0]] or long[batches[0]] != 1:
        raise NotPossible(f"{name} in the cache of the release's code has no dimension of sequences", _HINT)
    if len(grown) > 1 or (grown and long[grown[0]] - short[grown[0]] != added):
        raise NotPossible(f"{name} in the cache of the release's code does not grow with the tokens", _HINT)
    return Part(where, batches[0], grown[0] if grown else -1)


class ObservedPages(Pages):
    """As Pages, for a model whose code makes its own cache object when it is given none.

    `begin(batch, tokens)` runs the model without a cache on so many tokens and gives the object that it made; all ranks
    have to make the calls together. Raises NotPossible for an object that keeps something in another way.
    """

    def __init__(self, begin: Callable[[int, int], Any], *, block_tokens: int = 16,
                 device: torch.device | str = "cpu", folder: Path | None = None) -> None:
        with torch.no_grad():
            short, long = begin(1, _FEW), begin(1, _MORE)
            with _born(type(long)) as born:
                wide = begin(2, _MORE)
        if id(wide) not in born:
            raise NotPossible("the cache of the release's code is no object that its class makes", _HINT)
        parts = understand(short, long, wide, added=_MORE - _FEW)
        kinds = [LayerKind(window=ALL if any(part.tokens >= 0 for part in parts) else None,
                           states=int(any(part.tokens < 0 for part in parts)))]
        super().__init__(kinds, block_tokens=block_tokens, device=device, folder=folder)
        self._new, self._counters = born[id(wide)], _counters(short, long)
        self._pattern, self._examples = long, dict(tensors(long))
        scratch = [Scratch() for _ in parts]
        self._growing = {part: Track("", 1, scratch[number]) for number, part in enumerate(parts)
                         if part.tokens >= 0}
        self._fixed = {part: Slots() for part in parts if part.tokens < 0}
        self._batches = []
        self._slots = [(number, ("state", 0), slots) for number, slots in enumerate(self._fixed.values())]
        self._tracks = [(number, "part", Group(ALL), track) for number, track in enumerate(self._growing.values())]
        self._ready(self._frames.room)

    @property
    def uniform(self) -> bool:
        """What code does with an object without a past differs from what it does with one."""
        return True

    def _enter(self, sequences: tuple[int, ...]) -> None:
        call, batch = self.call, len(sequences)
        found: dict[Where, Any] = {}
        if not call.fresh:
            at = self._numbers(sequences)
            for part, track in self._growing.items():
                past = track.read(call.spans[track.lines].before(call.new, batch), batch)[0]
                found[part.where] = like(past.movedim((0, 1), (part.batch, part.tokens)), self._examples[part.where])
            for part, slots in self._fixed.items():
                found[part.where] = slots.read(at[slots.unit]).movedim(0, part.batch)
            found |= dict.fromkeys(self._counters, call.past)
        self.cache = with_tensors(self._new if call.fresh else self._pattern, found)

    def _leave(self, sequences: tuple[int, ...]) -> None:
        call, found = self.call, dict(tensors(self.cache))
        for part, track in self._growing.items():
            tensor = local(found[part.where])
            if tensor.shape[part.tokens] != call.past + call.new:
                raise NotPossible(f"{_name(part.where)} in the cache of the release's code has "
                                  f"{tensor.shape[part.tokens]} tokens after {call.past + call.new}", _HINT)
            new = tensor.narrow(part.tokens, call.past, call.new).movedim((part.batch, part.tokens), (0, 1))
            track.write((new,), call.spans[track.lines], 0 if track.pool is not None else self.places(Group(ALL)))
        at = self._numbers(sequences)
        for part, slots in self._fixed.items():
            slots.write(found[part.where].movedim(part.batch, 0), at[slots.unit], self._shape())


@contextmanager
def _born(kind: type) -> Iterator[dict[int, Any]]:
    """Copies of the objects of a class that are made meanwhile, as they are when they are new."""
    born: dict[int, Any] = {}
    original: Any = kind.__dict__.get("__init__", None)
    inherited: Any = getattr(kind, "__init__")  # noqa: B009  (of a class, on purpose)

    def initialize(self: Any, *args: Any, **options: Any) -> None:
        inherited(self, *args, **options)
        born[id(self)] = with_tensors(self, {})

    setattr(kind, "__init__", initialize)  # noqa: B010
    try:
        yield born
    finally:
        if original is None:
            delattr(kind, "__init__")
        else:
            setattr(kind, "__init__", original)  # noqa: B010


def _counters(short: Any, long: Any) -> tuple[Where, ...]:
    """Numbers in the object that say how many tokens it has. Raises NotPossible when others change as well."""
    first, second = dict(_numbers(short)), dict(_numbers(long))
    changed = [where for where, value in second.items() if first.get(where) != value]
    for where in changed:
        if (first.get(where), second[where]) != (_FEW, _MORE):
            raise NotPossible(f"{_name(where)} in the cache of the release's code changes with the text", _HINT)
    return tuple(changed)


def _numbers(value: Any, where: Where = ()) -> Iterator[tuple[Where, int]]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield where, value
    if not isinstance(value, torch.Tensor):
        for key, inner in _inside(value):
            yield from _numbers(inner, (*where, key))


def _name(where: Where) -> str:
    return ".".join(map(str, where))


def beginning(model: Any, device: torch.device | str = "cpu") -> Callable[[int, int], Any]:
    """For ObservedPages, of one whole model, which computes on that device: parameters may be in no memory."""

    def begin(batch: int, tokens: int) -> Any:
        given = model(input_ids=torch.ones(batch, tokens, dtype=torch.long, device=device), use_cache=True)
        found = getattr(given, "past_key_values", None)
        return found if found is not None else getattr(given, "cache", None)

    return begin
