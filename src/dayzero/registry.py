"""The one registry: names to objects, which may be given as `"module:attribute"` and are then imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from .errors import UsageError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one kind. A second registration of a name is an error, an unknown name lists the known ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T | str] = {}

    def add(self, name: str, entry: T | str) -> None:
        """Register `entry`, an object or `"module:attribute"`. Raises ValueError when the name is taken."""
        if name in self._entries:
            raise ValueError(f"two {self.kind}s are named {name!r}: {self._entries[name]!r} and {entry!r}")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The object of that name. Raises UsageError with the nearest known name."""
        if name not in self._entries:
            known = ", ".join(self.names()) or "none"
            raise UsageError(f"no {self.kind} is named {name!r}", f"{did_you_mean(name, self._entries)}known: {known}")
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._entries))

    def __iter__(self) -> Iterator[T]:
        return (self.get(name) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._entries
