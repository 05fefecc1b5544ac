"""dayzero: read a model release, check it, plan it, run it, prove it, and say how to launch it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["__version__", "load", "record"]

__version__ = "0.1.0"

_CALLS = {"load": "dayzero.library", "record": "dayzero.runtime.recording"}
"""The library's calls and where they are."""


def __getattr__(name: str) -> Any:
    """`load` and `record` when they are asked for: what only plans, or reads a version, imports nothing for them."""
    if name in _CALLS:
        return getattr(import_module(_CALLS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
