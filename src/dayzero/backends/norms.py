"""Norms of a model computed by torch's one operator in the place of the model file's several.

A module counts as such a norm by what it computes, not by its name: it has one weight vector and gives, for random
values, what the operator gives.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional

from .forwards import marked, replaced

_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_CLOSE = 1e-5
"""Of values around 1, in f32."""


def norms_of(model: torch.nn.Module, *, fused: bool) -> AbstractContextManager[int]:
    """Inside: the model's root-mean-square norms are one operator each (`fused`), or what the model's file says.
    Gives how many are replaced."""
    if not fused:
        return replaced(dict.fromkeys(marked(model, "fused")))
    return replaced({module: forward for module in model.modules() if (forward := _fused(module)) is not None})


def _fused(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The operator that computes what the module does; None: it is no such norm."""
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    eps = next((value for name in _NAMES if isinstance(value := getattr(module, name, None), float)), None)
    if weight is None or eps is None or weight.dim() != 1 or len(list(module.parameters())) != 1 or (
            list(module.children()) or isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm)):
        return None
    for added in (0.0, 1.0):
        candidate = _operator(module, eps, added)
        if _same(module, candidate, weight):
            return candidate
    return None


def _operator(module: torch.nn.Module, eps: float, added: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        weight: Any = module.weight  # looked up at each call: it may have moved
        scale = weight + added if added else weight
        return functional.rms_norm(hidden_states, weight.shape, scale, eps).to(hidden_states.dtype)

    forward.fused = True  # type: ignore[attr-defined]
    return forward


def _same(module: torch.nn.Module, candidate: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor) -> bool:
    values = torch.linspace(-2, 3, 2 * weight.numel(), dtype=torch.float32).reshape(2, -1).roll(3, 1)
    values = values.to(weight.device, weight.dtype)
    close = _CLOSE if weight.dtype == torch.float32 else 4 * torch.finfo(weight.dtype).eps
    try:
        with torch.no_grad():
            expected, got = module(values), candidate(values)
    except (TypeError, RuntimeError, ValueError, AttributeError):  # it takes something else than one tensor
        return False
    return isinstance(expected, torch.Tensor) and expected.shape == got.shape and torch.allclose(
        expected.float(), got.float(), rtol=close, atol=close)
