"""Looks at what each layer of a member puts out, and tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dayzero.runtime.building import decoder_layers
from dayzero.runtime.sharding import local

from .roles import NotFiniteError, Pace


def watch(model: Any, numbers: Sequence[int], pace: Pace) -> None:
    """`numbers`: layers that the member has. A pass through them in which one puts out a value that is no number ends
    with NotFiniteError at the last of them, or at once where asking costs nothing."""
    layers = [decoder_layers(model)[number] for number in numbers]
    found: list[tuple[int, torch.Tensor]] = []
    layers[0].register_forward_pre_hook(lambda *_: _enter(pace, found))
    for number, layer in zip(numbers, layers, strict=True):
        layer.register_forward_hook(_look(number, found, pace))
    layers[-1].register_forward_hook(lambda *_: _leave(pace, found))


def _enter(pace: Pace, found: list[tuple[int, torch.Tensor]]) -> None:
    found.clear()
    pace.enter()


def _leave(pace: Pace, found: list[tuple[int, torch.Tensor]]) -> None:
    _check(found)
    pace.leave()


def _check(found: list[tuple[int, torch.Tensor]]) -> None:
    """One question to the device for all layers. Raises NotFiniteError."""
    if found:
        fine = torch.stack([each for _, each in found]).tolist()
        first = next((number for (number, _), good in zip(found, fine, strict=True) if not good), None)
        found.clear()
        if first is not None:
            raise NotFiniteError(first)


def _look(number: int, found: list[tuple[int, torch.Tensor]], pace: Pace) -> Callable[[nn.Module, Any, Any], None]:
    def look(_: nn.Module, __: Any, made: Any) -> None:
        first = made[0] if isinstance(made, tuple) else made
        own = local(first)
        found.append((number, torch.isfinite(own).all()))
        if own.device.type == "cpu":
            _check(found)
        pace.step()

    return look
