"""Modules that compute by another forward for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Forward = Callable[..., Any]


def marked(model: torch.nn.Module, mark: str) -> list[torch.nn.Module]:
    """Modules whose forward was replaced by one that has this attribute."""
    return [module for module in model.modules() if getattr(vars(module).get("forward"), mark, False)]


@contextlib.contextmanager
def replaced(forwards: Mapping[torch.nn.Module, Forward | None]) -> Iterator[int]:
    """Inside: each module has its new forward (None: that of its class), and after it what it had before. Gives how
    many are changed."""
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        _put(module, forward)
    try:
        yield len(before)
    finally:
        for module, forward in before.items():
            _put(module, forward)


def _put(module: torch.nn.Module, forward: Forward | None) -> None:
    if forward is None:
        vars(module).pop("forward", None)
    else:
        module.forward = forward
