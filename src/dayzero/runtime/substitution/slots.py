"""Puts other tensors into a call's arguments and output, by the slots that recordings give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Change = Callable[[str, torch.Tensor], torch.Tensor]
"""(slot, tensor) -> the tensor to take instead, or the same."""


def changed(value: Any, change: Change, path: str = "") -> Any:
    """The same with tensors replaced; the very object when none was. Slots are those of `recording.values.slots`."""
    if isinstance(value, torch.Tensor):
        return change(path or "0", value)
    if isinstance(value, Mapping):
        made = {key: changed(each, change, _join(path, key)) for key, each in value.items()}
        return value if all(made[key] is value[key] for key in value) else _like(value, made)
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", range(len(value)))
        items = [changed(each, change, _join(path, name)) for name, each in zip(names, value, strict=True)]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else _sequence(value, items)
    return value


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _like(value: Any, made: dict[Any, Any]) -> Any:
    """A mapping of the same kind; a library's output is changed where it is, since its class cannot be called so."""
    if type(value) is dict:
        return made
    for key, each in made.items():
        value[key] = each
    return value


def _sequence(value: Any, items: list[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
