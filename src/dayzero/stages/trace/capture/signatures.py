"""What is known of a value or a module without looking at numbers in tensors: equal signatures of what goes into a
module mean that it does the same. Needs torch.

Anything that is not understood counts as itself only: its identity is its signature, and no other object is equal.
"""

from __future__ import annotations

import enum
import functools
import re
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .indices import Computed, Index, Log, Tracked

SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum, slice,
           type(...), torch.layout, torch.memory_format)  # fmt: skip
PLAIN = frozenset({bool, int, str, type(None), torch.dtype, torch.device})
"""Types whose values are compared, and of which there is nothing else to know."""
OWN = ("own number",)
"""Stands for a layer's own number."""
MOST_VALUES = 1024
"""Most values of a tensor that has some that are compared one by one."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
INTERNAL = frozenset(vars(torch.nn.Module())) | {"_is_hf_initialized"}
"""Attributes that torch itself keeps on each module."""


def is_state(value: Any) -> bool:
    """Whether it is an object that layers may keep something in, such as a cache."""
    return (hasattr(value, "__dict__") and not callable(value)
            and not isinstance(value, (type, types.ModuleType, torch.nn.Module, torch.Tensor, dict, enum.Enum))
            and not hasattr(value, "model_type"))


_NUMBER = re.compile(r"(?<![^.])(\d+)(?![^.])")


class Signatures:
    """Makes signatures; each structure is computed once."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.describe = self.value
        self.alive: dict[int, Any] = {}
        """What is compared by identity: kept, so that no other object gets it."""
        self._structures: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def value(self, value: Any, depth: int = 0) -> Hashable:
        """Signature of an argument, a result or an item of a cache."""
        if type(value) in PLAIN:
            return (type(value), value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Index):
            return OWN
        if isinstance(value, SCALARS):
            return (type(value).__name__, str(value) if isinstance(value, (slice, float)) else value)
        if isinstance(value, Tracked):
            return ("list", id(value))
        if depth < 8:
            if isinstance(value, (list, tuple)):
                return (type(value), *(self.value(item, depth + 1) for item in value))
            if isinstance(value, dict):
                return (type(value), *((key, self.value(item, depth + 1)) for key, item in value.items()))
            if is_state(value):
                return (type(value), *((key, self.value(item, depth + 1)) for key, item in vars(value).items()))
        return self._itself(value)

    def state(self, value: Any) -> Hashable:
        """Signature of an argument. A cache is itself with all but its lists, whose items count where used."""
        if isinstance(value, (list, tuple)) and not isinstance(value, (torch.Size, Tracked)):
            return (type(value), *map(self.state, value))
        if isinstance(value, dict):
            return (type(value), *((key, self.state(item)) for key, item in value.items()))
        if is_state(value) and not isinstance(value, (*SCALARS, Computed, Tracked)):
            self._track(value)
            return (id(value), *((key, self.value(item)) for key, item in vars(value).items()))
        return self.value(value)

    def _track(self, holder: Any) -> None:
        for name, item in list(vars(holder).items()):
            if type(item) is list and len(item) > 1:
                setattr(holder, name, Tracked.of(item, self.log))
            elif is_state(item) and not isinstance(item, (*SCALARS, Computed, Tracked)) and type(item) is type(holder):
                self._track(item)

    def _itself(self, value: Any) -> Hashable:
        self.alive[id(value)] = value
        return ("itself", id(value))

    def _tensor(self, value: torch.Tensor) -> Hashable:
        seen = (type(value), tuple(value.shape), value.stride(), value.dtype) if value.layout is torch.strided else None
        if seen is None:
            return self._itself(value)
        if value.device.type == "meta":
            return seen
        if value.numel() > MOST_VALUES:
            return self._itself(value)
        with _disable_current_modes():
            return (*seen, tuple(value.flatten().tolist()))

    def settings(self, module: torch.nn.Module) -> Hashable:
        """Class, shapes and dtypes of its own parameters and buffers, and all plain attributes of one module."""
        kept = module.__dict__
        tensors = [(name, None if tensor is None else (tensor.shape, tensor.dtype, tensor.stride()))
                   for held in (kept["_parameters"], kept["_buffers"]) for name, tensor in held.items()]
        own = [(name, value if type(value) is int else self.setting(value))
               for name, value in kept.items() if name not in INTERNAL]
        hooks = [id(hook) for name in HOOKS if kept[name] for hook in kept[name].values()]
        return (type(module), kept["training"], tuple(tensors), tuple(own), tuple(hooks))

    def setting(self, value: Any) -> Hashable:
        """Signature of an attribute. What is shared by all layers is itself (a config, a function)."""
        if type(value) in PLAIN:
            return (type(value), value)
        if isinstance(value, (torch.Tensor, *SCALARS)):
            return self.value(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return (type(value).__name__, *map(self.setting, value))
        if type(value) is dict:
            return ("dict", *((key, self.setting(item)) for key, item in value.items()))
        if isinstance(value, types.MethodType) and isinstance(value.__self__, torch.nn.Module):
            return ("method", id(value.__func__), type(value.__self__))
        if type(value) is functools.partial:
            return ("partial", *map(self.setting, (value.func, value.args, value.keywords)))
        return self._itself(value)

    def structure(self, module: torch.nn.Module) -> int:
        """A number that modules share when their trees have the same classes, shapes, dtypes and settings."""
        known = self._structures.get(id(module))
        if known is None:
            children = [(name, self.structure(child)) for name, child in module._modules.items() if child is not None]
            key = (self.settings(module), tuple(children))
            known = self._structures[id(module)] = self._numbers.setdefault(key, len(self._numbers))
        return known


def numbered(path: str) -> str:
    """A path with `*` for each number."""
    return _NUMBER.sub("*", path)


def first_number(path: str) -> int | None:
    """The first number of a path: that of the layer; None: there is none."""
    found = _NUMBER.search(path)
    return int(found[1]) if found else None


def leaves(value: Any) -> Iterator[Any]:
    """Tensors and objects inside tuples, lists and dicts."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts with changed leaves. Raises TypeError when a container cannot be made anew."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [rebuilt(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return type(value)(**{key: rebuilt(item, change) for key, item in value.items()}) if all(
            isinstance(key, str) for key in value) else type(value)(
            (key, rebuilt(item, change)) for key, item in value.items())
    return change(value)
