"""What a module gives, as a rule: its structure, and how the sizes of its tensors follow from the number of sequences
and of tokens. So one that is absent is stood in for, and its values are received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from dayzero.errors import NotPossible

_EXPONENTS = ((0, 0), (1, 0), (0, 1), (1, 1))


@dataclass(frozen=True)
class Sizes:
    """Shape and type of a tensor."""

    dims: tuple[tuple[int, int, int], ...]
    """For each dimension (factor, exponent of the sequences, exponent of the tokens)."""
    dtype: torch.dtype

    def shape(self, sequences: int, tokens: int) -> tuple[int, ...]:
        """For that many sequences with that many new tokens each."""
        return tuple(factor * sequences**power * tokens**other for factor, power, other in self.dims)

    def empty(self, sequences: int, tokens: int) -> torch.Tensor:
        """A tensor without data."""
        return torch.empty(self.shape(sequences, tokens), dtype=self.dtype, device="meta")

    def wrong(self, sequences: int, tokens: int, device: torch.device) -> torch.Tensor:
        """A tensor that nobody may use: it holds no numbers. One of integers holds the smallest, no valid index."""
        value = float("nan") if self.dtype.is_floating_point else 0 if self.dtype == torch.bool else (
            torch.iinfo(self.dtype).min)
        return torch.full(self.shape(sequences, tokens), value, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Given:
    """Not a tensor: what the module was given under this name comes back."""

    name: str


@dataclass(frozen=True)
class Output:
    """What one module gives."""

    spec: TreeSpec
    leaves: tuple[Sizes | Given | None, ...]
    """In the order of the structure."""

    @property
    def tensors(self) -> tuple[Sizes, ...]:
        """Of the leaves, those."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Sizes))

    def with_values(self, tensors: Sequence[torch.Tensor], named: Mapping[str, Any]) -> Any:
        """The structure with these tensors."""
        values = iter(tensors)
        leaves = [next(values) if isinstance(leaf, Sizes) else named.get(leaf.name) if isinstance(leaf, Given) else None
                  for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def output_of(name: str, runs: Sequence[tuple[int, int, Any, Mapping[str, Any]]]) -> Output:
    """Of what a module gave in some runs: (sequences, tokens, output, what it was given by name). Raises NotPossible
    when there is no rule for it."""
    flat = [tree_flatten(output) for _, _, output, _ in runs]
    if any(spec != flat[0][1] for _, spec in flat):
        raise NotPossible(f"{name} gives results of changing structure: no stage can begin after it",
                          "choose a layout with pp=1")
    sizes = [(sequences, tokens) for sequences, tokens, _, _ in runs]
    leaves: list[Sizes | Given | None] = []
    for values in zip(*(leaves for leaves, _ in flat), strict=True):
        if all(isinstance(value, torch.Tensor) for value in values):
            leaves.append(_sizes(name, sizes, values))
        else:
            same = (key for key, value in runs[0][3].items() if value is values[0] and value is not None)
            leaves.append(next((Given(key) for key in same), None))
    return Output(flat[0][1], tuple(leaves))


def _sizes(name: str, runs: Sequence[tuple[int, int]], values: Sequence[torch.Tensor]) -> Sizes:
    dims = []
    for axis, lengths in enumerate(zip(*(value.shape for value in values), strict=True)):
        rule = next((found for exponents in _EXPONENTS if (found := _rule(exponents, runs, lengths))), None)
        if rule is None:
            raise NotPossible(f"dimension {axis} of what {name} gives follows no rule: {list(lengths)}",
                              "choose a layout with pp=1")
        dims.append(rule)
    return Sizes(tuple(dims), values[0].dtype)


def _rule(exponents: tuple[int, int], runs: Sequence[tuple[int, int]], lengths: Sequence[int]
          ) -> tuple[int, int, int] | None:
    units = [sequences**exponents[0] * tokens**exponents[1] for sequences, tokens in runs]
    factor = lengths[0] // units[0]
    fits = all(factor * unit == length for unit, length in zip(units, lengths, strict=True))
    return (factor, *exponents) if fits else None
