"""Automatic mixed precision on tensors without values. Needs torch.

Model code turns it off around rotary tables and routers, with the type of device of its tensors. The meta device has no
such thing, and says so with an error; there is nothing to be turned off there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_META = "meta"


@contextlib.contextmanager
def meta_autocast() -> Iterator[None]:
    """While it lasts, torch.autocast for the meta device does nothing, whatever it is asked for."""
    plain = torch.autocast.__init__

    def made(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != _META:
            return plain(self, device_type, *args, **kwargs)
        return plain(self, "cpu", dtype=torch.get_autocast_dtype("cpu"), enabled=torch.is_autocast_enabled("cpu"))

    setattr(torch.autocast, "__init__", made)  # noqa: B010  (a method is assigned on purpose)
    try:
        yield
    finally:
        setattr(torch.autocast, "__init__", plain)  # noqa: B010
