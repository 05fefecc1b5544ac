"""What each kind of decoder layer is called with, seen in one pass through the model's own code.

Only one layer of each kind runs, with weights that are all zero, which take no memory; the others give what that one
gave. So a model of any size is looked at in seconds, also one whose code asks for values.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dayzero.runtime.building import decoder_layers
from dayzero.runtime.building.zeros import zeros

TOKENS = (2, 8)
"""Sequences and tokens of each."""
_CACHES = ("past_key_values", "past_key_value", "cache_params", "layer_past")


@dataclass(frozen=True)
class Kind:
    """Layers that are alike."""

    layer: nn.Module
    """One of them."""
    numbers: tuple[int, ...]
    """All of them."""
    args: tuple[Any, ...]
    """What it is called with,"""
    kwargs: dict[str, Any]
    """without a cache."""


def pattern(name: str) -> str:
    """A dotted name with `*` for its numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", re.sub(r"^\d+(?=\.|$)", "*", name))


def signature(layer: nn.Module) -> tuple[Any, ...]:
    """What layers have in common that are alike."""
    parts = tuple((pattern(name), type(module).__name__) for name, module in layer.named_modules())
    return tuple(dict.fromkeys(parts)), tuple((name, tuple(each.shape)) for name, each in layer.named_parameters())


def fresh(values: Any) -> Any:
    """Copies of what code is called with: it may write into tensors, and a cache of its own remembers."""
    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        if value is None or isinstance(value, str | int | float | torch.dtype | torch.device | nn.Module) or (
                callable(value)):
            return value
        return copy.deepcopy(value)

    return tree_map(copied, values)


def kinds(model: Any) -> list[Kind]:
    """Of the decoder's layers, in the order of their first ones. The model's parameters have no data, before and after.
    Raises what its code raises."""
    layers = decoder_layers(model)
    numbers: dict[Any, list[int]] = {}
    for number, layer in enumerate(layers):
        numbers.setdefault(signature(layer), []).append(number)
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    first = {number: own[0] for own in numbers.values() for number in own}
    decoder = model.get_decoder()
    inside = {id(module) for module in layers.modules()}
    with torch.no_grad(), zeros(decoder, but=inside), _recording(layers, first, calls):
        decoder(input_ids=torch.zeros(TOKENS, dtype=torch.long), use_cache=False)
    return [Kind(layers[own[0]], tuple(own), *calls[own[0]]) for own in numbers.values()]


@contextmanager
def _recording(layers: nn.ModuleList, first: dict[int, int], calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]]
               ) -> Iterator[None]:
    """The first layer of each kind runs and is taken down, the others repeat what it gave."""
    given: dict[int, Any] = {}

    def call(number: int, *args: Any, **kwargs: Any) -> Any:
        own = first[number]
        if own not in given:
            named = {name: None if name in _CACHES else value for name, value in kwargs.items()}
            calls[own] = fresh(args), fresh(named)
            with zeros(layers[own]):
                given[own] = plain[own](*args, **kwargs)
        return tree_map(lambda value: value, given[own])

    plain = {number: layer.forward for number, layer in enumerate(layers)}
    for number, layer in enumerate(layers):
        layer.forward = lambda *args, _number=number, **kwargs: call(_number, *args, **kwargs)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
