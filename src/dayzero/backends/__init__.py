"""Backends: the kinds of device that dayzero can measure and run on, and the plug-ins that add more.

A package adds one with an entry point in the group `dayzero.backends` whose value is `module:attribute`, the backend.
One that cannot be used is left out with a warning; `available()` of what stands in its place says why.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from dayzero.progress import SILENT, Progress
from dayzero.registry import Registry
from dayzero.schema import Device

from .base import Backend, Chosen, Known, ListsOperators, Memory, ParallelPlan, Stream
from .optimizations import chosen
from .torch_backend import TorchBackend
from .unusable import Unusable

__all__ = [
    "ENTRY_POINTS", "Backend", "Chosen", "Known", "ListsOperators", "Memory", "ParallelPlan", "Stream", "TorchBackend",
    "backend_for", "backends", "chosen", "measure_host",
]  # fmt: skip

ENTRY_POINTS = "dayzero.backends"
_HOST = "cpu"
_MEMBERS = {name for name in (*Backend.__annotations__, *vars(Backend)) if not name.startswith("_")}
"""What a backend must have."""


@cache
def backends() -> Registry[Backend]:
    """All backends by name: ours and those of installed packages. A package's backend that cannot be imported, or whose
    name is taken, is `Unusable`, the latter under `name (package)`."""
    registry: Registry[Backend] = Registry("backend")
    registry.add("cpu", "dayzero.backends.cpu:BACKEND")
    registry.add("cuda", "dayzero.backends.cuda:BACKEND")
    registry.add("simulated", "dayzero.backends.simulated:BACKEND")
    for entry in entry_points(group=ENTRY_POINTS):
        package = entry.dist.name if entry.dist else entry.value
        taken = entry.name in registry
        name = f"{entry.name} ({package})" if taken else entry.name
        if name in registry:  # the same package found twice
            continue
        backend = Unusable(name, f"another backend is named {entry.name!r}") if taken else _load(entry)
        if isinstance(backend, Unusable):
            warnings.warn(f"backend {entry.name!r} of {package} is left out: {backend.reason}", RuntimeWarning,
                          stacklevel=2)
        registry.add(name, backend)
    return registry


def _load(entry: EntryPoint) -> Backend:
    try:
        backend: Backend = entry.load()
    except Exception as error:  # a stranger's code may raise anything, and dayzero works without it
        return Unusable(entry.name, f"{entry.value} cannot be imported: {type(error).__name__}: {error}")
    if lacking := sorted(_MEMBERS - set(dir(backend))):
        return Unusable(entry.name, f"{entry.value} lacks {', '.join(lacking)}")
    return backend


def backend_for(device: Device) -> Backend | None:
    """The backend that can really run ranks planned for the described device on this machine; None: none can."""
    return next((backend for backend in backends() if not backend.available() and backend.runs(device)), None)


def measure_host(ranks: int, progress: Progress = SILENT) -> Device:
    """One rank's share of this host when `ranks` processes work at the same time. Raises as `Backend.measure`."""
    return backends().get(_HOST).measure(ranks, progress)
