"""Gradients against finite differences: the slope of the loss along a parameter's own gradient is its length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from dayzero.schema.derivatives import Sampled

from .decided import OtherWaysError, decided
from .parts import own

CHANGE, MOST = 0.02, 0.05
"""Change of the loss that a step aims at; most of a parameter's length that it moves it by."""
SMALLER = (1.0, 0.25, 0.0625)
"""Step sizes that are tried: where the loss bends, a smaller one is nearer."""
ERROR, LEAST = 4e-7, 0.005
"""Relative error of a loss in f32; relative error of a slope above which it tells nothing."""


class Loss(Protocol):
    """A model on some tokens."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """By name; changing one changes the loss."""

    def loss(self) -> float:
        """Of the parameters as they are."""


def differences(model: Loss, gradients: dict[str, torch.Tensor], count: int) -> tuple[Sampled, ...]:
    """Of `count` parameters, evenly over the model. What it decides (experts, positions) stays as it is."""
    names = [name for name, each in gradients.items() if float(each.norm()) > 0]
    step = max(1, len(names) // count) if count else 1
    loss = decided(model.loss)
    value = loss() if count and names else 0.0
    return tuple(_sampled(own(model.parameters[name]), name, gradients[name], loss, value)
                 for name in names[:: step][:count])


def _sampled(parameter: torch.Tensor, name: str, gradient: torch.Tensor, loss: Callable[[], float], value: float
             ) -> Sampled:
    length = float(gradient.norm())
    step = min(CHANGE / length, MOST * float(parameter.detach().norm()) or CHANGE)
    direction = gradient / length
    try:
        slopes = [_slope(loss, parameter, direction, size * step) for size in SMALLER
                  if ERROR * value / (size * step * length) <= LEAST]
    except OtherWaysError:
        return Sampled(name=name, gradient=length, difference=0.0,
                       skipped="the model goes other ways when it is changed, so its loss jumps")
    if not slopes:
        return Sampled(name=name, gradient=length, difference=0.0,
                       skipped="its gradient is too small for a loss in f32 to show it")
    return Sampled(name=name, gradient=length, difference=_nearest(slopes, length))


def _slope(loss: Callable[[], float], parameter: torch.Tensor, direction: torch.Tensor, step: float) -> float:
    """(4 D(h/2) - D(h)) / 3 of central differences D. The parameter is as before afterwards."""
    before = parameter.detach().clone()

    def central(size: float) -> float:
        seen = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter.copy_(before + sign * size * direction)
            seen.append(loss())
        return (seen[0] - seen[1]) / (2 * size)

    try:
        return (4 * central(step / 2) - central(step)) / 3
    finally:
        with torch.no_grad():
            parameter.copy_(before)


def _nearest(slopes: Sequence[float], length: float) -> float:
    return min(slopes, key=lambda slope: abs(slope - length))
