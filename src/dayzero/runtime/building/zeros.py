"""Weights that are all zero and take no memory: a model of any size is run on trial with them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def zeros(module: nn.Module, but: frozenset[int] | set[int] = frozenset()) -> Iterator[dict[int, str]]:
    """While it lasts, parameters without data are zeros, save those of modules whose ids are in `but`; gives {storage:
    name}."""
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    made: dict[int, nn.Parameter] = {}
    names: dict[int, str] = {}
    for path, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter.is_meta and id(owner) not in but:
                kept.append((owner, name, parameter))
                if id(parameter) not in made:
                    zero = _untouched(parameter)
                    made[id(parameter)] = nn.Parameter(zero, requires_grad=False)
                    names[storage_of(zero)] = f"{path}.{name}" if path else name
                owner._parameters[name] = made[id(parameter)]
    try:
        yield names
    finally:
        for owner, name, parameter in kept:
            owner._parameters[name] = parameter


def _untouched(parameter: torch.Tensor) -> torch.Tensor:
    """Zeros that take no memory as long as nobody writes to them: the system's, not torch's, which writes them."""
    if parameter.nbytes < mmap.PAGESIZE:
        return torch.zeros(parameter.shape, dtype=parameter.dtype)
    pages = mmap.mmap(-1, parameter.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=parameter.dtype).view(parameter.shape)


def storage_of(tensor: torch.Tensor) -> int:
    """What views of the same data have in common."""
    return int(tensor.untyped_storage()._cdata)
