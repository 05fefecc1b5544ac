"""Check: the devices exist, and have the type and the indices that the backend says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dayzero.backends import Backend
from dayzero.errors import UsageError

from .nouns import Failure, require


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """One."""
    yield "", lambda: _devices(backend)


def _devices(backend: Backend) -> str:
    require(backend.is_available(), "is_available() is false, and available() gives no reason")
    require(backend.describe(), "describe() says nothing")
    count = backend.device_count
    require(count >= 1, f"it is available and has {count} devices")
    for index in {0, count - 1}:
        device = backend.device(index)
        require(device.type == backend.device_type, f"device {index} is of type {device.type}, not "
                                                    f"{backend.device_type}")
        tensor = torch.ones(3, device=device)
        require(tensor.device.type == device.type, f"a tensor made on {device} is on {tensor.device}")
        require(device.index is None or tensor.device.index == device.index,
                f"a tensor made on {device} is on {tensor.device}")
    for index in (count, -1):
        try:
            backend.device(index)
        except UsageError:
            continue
        raise Failure(f"device({index}) is given, and there are {count}")
    return f"{count} of type {backend.device_type}"
