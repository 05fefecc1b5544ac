"""What model code does to tensors that it takes to have values, and that have none. Needs torch.

    meta_autocast   Automatic mixed precision is turned off around rotary tables and routers, or asked for, with the
                    type of device of a tensor. The meta device has no such thing, and says so with an error; there it
                    is off, whatever it is told.
    unfilled        Weights are filled with random numbers, one after the other: a millisecond each for no values.
    kept_empty, parameters_on_meta, without_values   Where a module is made that does not expect the meta device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_META = "meta"
_FILLS = ("normal_", "uniform_", "random_", "exponential_", "log_normal_", "cauchy_", "bernoulli_", "geometric_",
          "zero_", "fill_")
"""Methods of a tensor that give it new values and depend on none of the old."""


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

    with assigned(torch.autocast, {"__init__": make}), assigned(torch, {"is_autocast_enabled": is_enabled}):
        yield


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """While it lasts, tensors on the meta device are not filled."""
    with assigned(torch.Tensor, {name: _unless_meta(getattr(torch.Tensor, name)) for name in _FILLS}):
        yield


@contextlib.contextmanager
def kept_empty() -> Iterator[None]:
    """While it lasts, modules that were made on the meta device stay there when they are to be made anew elsewhere."""
    with assigned(torch.nn.Module, {"to_empty": lambda self, *_args, **_kwargs: self}):
        yield


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """While it lasts, each parameter that a module gets goes to the meta device; other tensors have values."""
    register = torch.nn.Module.register_parameter

    def registered(self: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to(_META), requires_grad=parameter.requires_grad)
        register(self, name, parameter)

    with assigned(torch.nn.Module, {"register_parameter": registered}):
        yield


def without_values(model: Any) -> Any:
    """The module, whose tensors are all on the meta device: buffers, and attributes that are no buffers."""
    for module in model.modules():
        for names in (vars(module), module._buffers):
            for name, value in list(names.items()):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    names[name] = value.to(_META)
    return model


def _unless_meta(fill: Callable[..., Any]) -> Callable[..., Any]:
    def filled(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self if self.is_meta else fill(self, *args, **kwargs)

    return filled


@contextlib.contextmanager
def assigned(owner: Any, names: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Names of a module or class that stand for something else while it lasts."""
    inherited = [name for name in names if name not in vars(owner)]
    plain = {name: getattr(owner, name) for name in names if name not in inherited}
    for name, function in names.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(owner, name, function)
        for name in inherited:
            delattr(owner, name)
