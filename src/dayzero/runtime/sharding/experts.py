"""Routed experts in a layer: which modules they are.

Two forms exist. Packed: one module whose parameters have the experts as their first dimension, called with the states,
the numbers of the chosen experts and their weights. Listed: a list of modules that are alike, which the code around
them calls one by one, those that were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dayzero.runtime.building import alike, packed


@dataclass(frozen=True)
class Experts:
    """Routed experts."""

    name: str
    """Of the module, or of the list."""
    count: int
    """Experts."""
    packed: bool
    """Whether they are in one module."""

    def holds(self, parameter: str) -> bool:
        """Whether a parameter, by its name, is of these experts."""
        return parameter.startswith(f"{self.name}.")

    def number(self, parameter: str) -> int:
        """Which expert of a list it is of."""
        return int(parameter[len(self.name) + 1:].partition(".")[0])


def find(module: nn.Module, prefix: str = "") -> list[Experts]:
    """All below a module that is no list of experts itself; their names begin with `prefix`."""
    made: list[Experts] = []
    for name, each in module.named_modules(prefix=prefix):
        if name != prefix and (count := packed(each)):
            made.append(Experts(name, count, True))
        elif isinstance(each, nn.ModuleList) and name != prefix and alike(each):
            made.append(Experts(name, len(each), False))
    return made
