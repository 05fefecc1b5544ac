"""How fast a device really is: shares of the stated rates, as a triple (fastest, expected, slowest).

Every cost is computed for the three at once; they become the low end, the value and the high end of an estimate.
docs/numbers.md names each constant here and says where it is from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dayzero.schema import Device, Noun

Triple = np.ndarray[Any, np.dtype[np.float64]]
"""Shape [3]: fastest, expected, slowest."""

EXPECTED = 1
"""Index of the expected case."""
MATRIX_SHARE = (1.0, 0.65, 0.4)
"""Share of the datasheet's dense matrix rate that large products reach."""
MEMORY_SHARE = (1.0, 0.75, 0.5)
"""Share of the datasheet's memory bandwidth that decode kernels reach."""
LINK_SHARE = (1.0, 0.75, 0.4)
"""Share of a link's stated bandwidth that collectives reach."""
UNKNOWN_LAUNCH = (0.0, 0.0, 1e-6)
"""Seconds for each traced operator that launches something, on a device whose overhead is not known."""
SPREAD = 1.5
"""Factor either way around a prediction from rates that were measured."""


class Speeds(Noun, frozen=True, kw_only=True):
    """Factors on the stated rates of device and links."""

    matrix: Any
    """Triple: on `Device.flops`."""
    memory: Any
    """Triple: on `Device.memory_bandwidth`."""
    link: Any
    """Triple: on `Link.bandwidth`."""
    waiting: Any
    """Triple: on latencies and the overhead of operators; above 1 is slower."""
    source: str
    """What an estimate made with them calls its source."""


def speeds(device: Device) -> Speeds:
    """The factors for a measured device, one with a stated efficiency, or one of which only the datasheet is known."""
    around, waiting = np.array([SPREAD, 1.0, 1 / SPREAD]), np.array([1 / SPREAD, 1.0, SPREAD])
    if device.measured:
        return Speeds(matrix=around, memory=around, link=around, waiting=waiting, source="measured here")
    if device.efficiency is None:
        return Speeds(matrix=np.array(MATRIX_SHARE), memory=np.array(MEMORY_SHARE), link=np.array(LINK_SHARE),
                      waiting=waiting, source="datasheet roofline")
    reached = np.minimum(around * device.efficiency, 1.0)
    return Speeds(matrix=reached, memory=reached, link=around, waiting=waiting,
                  source=f"datasheet at a stated efficiency of {device.efficiency:g}")
