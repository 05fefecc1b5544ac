"""Facts as files: devices, engines, names of config keys and tensors, operators; each figure with its source."""

from .devices import device, devices
from .engines import engine, engines

__all__ = ["device", "devices", "engine", "engines"]
