"""What an operator is: named axes, tensors over them, and flops and bytes as functions of the axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from dayzero.registry import Registry
from dayzero.schema import Noun

Axes = Mapping[str, float]
"""Axis name -> length. Element sizes are axes too (`item`, `weight_item`: bytes of one value, possibly below one)."""
Count = Callable[[Axes], float]
"""A number of operations or bytes, from the axes."""


class TensorSpec(Noun, frozen=True, kw_only=True):
    """One tensor that an operator reads or writes."""

    name: str
    """What the formula calls it."""
    axes: tuple[str, ...]
    """Its axes, outermost first."""
    item: str = "item"
    """Axis that holds the bytes of one element."""

    def bytes(self, axes: Axes) -> float:
        """Bytes of the tensor."""
        return prod(axes[name] for name in self.axes) * axes[self.item]


class OpDefinition(Noun, frozen=True, kw_only=True):
    """An operator. Implementations are judged against it; costs are computed from it."""

    name: str
    """Name in the registry."""
    summary: str
    """What it computes, in one line."""
    axes: dict[str, str]
    """Axis -> what it counts."""
    inputs: tuple[TensorSpec, ...]
    """Tensors that it reads, weights and caches among them."""
    outputs: tuple[TensorSpec, ...]
    """Tensors that it writes."""
    flops: Count
    """Floating-point operations; a multiply-add counts two."""
    bytes: Count
    """Bytes that must move at least once between memory and the device's units."""
    source: str
    """Where the formulas are from."""


def moved(*tensors: TensorSpec) -> Count:
    """The bytes of an operator that reads or writes each of these tensors once."""
    return lambda axes: sum(tensor.bytes(axes) for tensor in tensors)


OPERATORS: Registry[OpDefinition] = Registry("operator")
for _name in ("linear", "embedding", "attention", "latent_attention", "linear_attention", "experts", "router", "norm",
              "elementwise", "merged_attention", "rotary", "copy", "mask", "indexer", "convolution", "matmul",
              "sampling", "gated_linear_attention", "state_space"):
    OPERATORS.add(_name, f"dayzero.ops.{_name}:DEFINITION")
