"""Automatic mixed precision on tensors without values. Needs torch.

Model code turns it off around rotary tables and routers, or asks whether it is on, with the type of device of its
tensors. The meta device has no such thing, and says so with an error; there it is off, whatever it is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_META = "meta"


@contextlib.contextmanager
def meta_autocast() -> Iterator[None]:
    """While it lasts, torch.autocast for the meta device does nothing, and is off."""
    made, enabled = torch.autocast.__init__, torch.is_autocast_enabled

    def make(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != _META:
            return made(self, device_type, *args, **kwargs)
        return made(self, "cpu", dtype=torch.get_autocast_dtype("cpu"), enabled=enabled("cpu"))

    def is_enabled(*device: str) -> bool:
        return device != (_META,) and enabled(*device)

    _assign(make, is_enabled)
    try:
        yield
    finally:
        _assign(made, enabled)


def _assign(made: Any, enabled: Any) -> None:
    for owner, name, function in ((torch.autocast, "__init__", made), (torch, "is_autocast_enabled", enabled)):
        setattr(owner, name, function)
