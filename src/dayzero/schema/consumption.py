"""Consumption: which keys of a config a library's code reads while it builds and runs a model."""

from __future__ import annotations

import msgspec

from .base import Noun


class Consumption(Noun, frozen=True, kw_only=True):
    """The keys that were read, by whatever part of the language model."""

    source: str = ""
    """Whose code: library, version and class."""
    reads: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Key, without the tables before it -> `file:line` of each place that read it."""
    incomplete: str = ""
    """Why not all reads were seen; empty: the model was built, and ran a forward pass."""
    impossible: str = ""
    """Why nothing is known; empty: it is."""

    def places(self, *keys: str) -> tuple[str, ...]:
        """Where any of these keys is read, or the table that it is in (`table.key`)."""
        names = dict.fromkeys(name for key in keys for name in (key.split(".")[0], key.rpartition(".")[2]))
        return tuple(dict.fromkeys(place for name in names for place in self.reads.get(name, ())))
