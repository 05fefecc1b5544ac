"""Backends: the kinds of device that dayzero can measure and run on, and the plug-ins that add more.

A package adds one with an entry point in the group `dayzero.backends` whose value is `module:attribute`, the backend.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from dayzero.progress import SILENT, Progress
from dayzero.registry import Registry
from dayzero.schema import Device

from .base import Backend

__all__ = ["ENTRY_POINTS", "Backend", "backend_for", "backends", "measure_host"]

ENTRY_POINTS = "dayzero.backends"
_HOST = "cpu"


@cache
def backends() -> Registry[Backend]:
    """All backends by name: ours and those of installed packages. Raises ValueError when two have one name."""
    registry: Registry[Backend] = Registry("backend")
    registry.add("cpu", "dayzero.backends.cpu:BACKEND")
    registry.add("cuda", "dayzero.backends.cuda:BACKEND")
    for entry in entry_points(group=ENTRY_POINTS):
        registry.add(entry.name, entry.value)
    return registry


def backend_for(device: Device) -> Backend | None:
    """The backend that can really run ranks planned for the described device on this machine; None: none can."""
    return next((backend for backend in backends() if not backend.available() and backend.runs(device)), None)


def measure_host(ranks: int, progress: Progress = SILENT) -> Device:
    """One rank's share of this host when `ranks` processes work at the same time. Raises as `Backend.measure`."""
    return backends().get(_HOST).measure(ranks, progress)
