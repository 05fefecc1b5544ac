"""Devices that shipped code names, where there is none but the host and meta, which stands for all others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dayzero.runtime.meta import assigned

_HERE = ("cpu", "meta")


@contextlib.contextmanager
def only_meta() -> Iterator[None]:
    """While it lasts, an accelerator that is named is the meta device."""
    with assigned(torch.cuda, {"current_device": lambda: 0}), _Devices(_elsewhere):
        yield


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """While it lasts, what is on the meta device stays there, wherever it is sent."""
    with _Devices(_anywhere):
        yield


class _Devices(TorchFunctionMode):
    """Asks a function for another device in the place of the one that is named in a call."""

    def __init__(self, instead: Callable[[Any, bool], Any]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        on_meta = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_meta
        if name in ("cuda", "cpu") and args and isinstance(args[0], torch.Tensor):
            if self._instead(name, on_meta) == "meta":
                return args[0].to("meta")
        elif name == "to" and len(args) > 1 and isinstance(args[1], str | torch.device | int):
            args = (args[0], self._instead(args[1], on_meta), *args[2:])
        if kwargs.get("device") is not None:
            kwargs["device"] = self._instead(kwargs["device"], on_meta and name == "to")
        return func(*args, **kwargs)


def _elsewhere(asked: Any, _on_meta: bool) -> Any:
    return asked if not isinstance(asked, int) and torch.device(asked).type in _HERE else "meta"


def _anywhere(asked: Any, on_meta: bool) -> Any:
    return "meta" if on_meta else asked
