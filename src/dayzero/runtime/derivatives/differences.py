"""Gradients against finite differences: the slope of the loss along a parameter's own gradient is its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from dayzero.schema.derivatives import Sampled

from .parts import own

CHANGE, MOST = 0.02, 0.05
"""Change of the loss that a step aims at; most of a parameter's length that it moves it by."""
SMALLER = (1.0, 0.25, 0.0625)
"""Step sizes that are tried: where the loss jumps (a router's choice) or bends, a smaller one is nearer."""
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
    """Of `count` parameters, evenly over the model."""
    names = [name for name, each in gradients.items() if float(each.norm()) > 0]
    step = max(1, len(names) // count) if count else 1
    loss = model.loss() if count and names else 0.0
    return tuple(_sampled(model, name, gradients[name], loss) for name in names[:: step][:count])


def _sampled(model: Loss, name: str, gradient: torch.Tensor, loss: float) -> Sampled:
    length = float(gradient.norm())
    parameter = own(model.parameters[name])
    step = min(CHANGE / length, MOST * float(parameter.detach().norm()) or CHANGE)
    direction = gradient / length
    slopes = [slope for size in SMALLER if ERROR * loss / (size * step * length) <= LEAST
              for slope in [_slope(model, parameter, direction, size * step)]]
    if not slopes:
        return Sampled(name=name, gradient=length, difference=0.0,
                       skipped="its gradient is too small for a loss in f32 to show it")
    return Sampled(name=name, gradient=length, difference=_nearest(slopes, length))


def _slope(model: Loss, parameter: torch.Tensor, direction: torch.Tensor, step: float) -> float:
    """(4 D(h/2) - D(h)) / 3 of central differences D."""
    before = parameter.detach().clone()

    def central(size: float) -> float:
        seen = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter.copy_(before + sign * size * direction)
            seen.append(model.loss())
        return (seen[0] - seen[1]) / (2 * size)

    found = (4 * central(step / 2) - central(step)) / 3
    with torch.no_grad():
        parameter.copy_(before)
    return found


def _nearest(slopes: Sequence[float], length: float) -> float:
    return min(slopes, key=lambda slope: abs(slope - length))
