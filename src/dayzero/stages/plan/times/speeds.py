"""How fast a device really is: shares of the stated rates, as a triple (fastest, expected, slowest).

Every cost is computed for the three at once; they become the low end, the value and the high end of an estimate.
docs/numbers.md names each constant here and says where it is from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dayzero.data.efficiency import Common, EngineFigures, Generation, Interval, efficiency
from dayzero.data.measured import Library, library
from dayzero.placement.precision import schemes
from dayzero.schema import ModelSpec, Noun, Target

Triple = np.ndarray[Any, np.dtype[np.float64]]
"""Shape [3]: fastest, expected, slowest."""

EXPECTED = 1
"""Index of the expected case."""
UNKNOWN_LAUNCH = (0.0, 0.0, 1e-6)
"""Seconds for each traced operator that launches something, on a device whose overhead is not known."""
SPREAD = 1.5
"""Factor either way around a prediction from rates that were measured."""


class Shares(Noun, frozen=True, kw_only=True):
    """What devices of a generation under an engine reach, by class of operators."""

    generation: Generation
    """Of the device."""
    engine: EngineFigures
    """Of the engine."""
    common: Common
    """Of all."""
    between: Interval
    """Around times of such cases."""
    tables: Library | None = None
    """Measured times of operators that stand in for shares; None: none do."""


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
    shares: Shares | None = None
    """Of a device of which only the datasheet is known: what each class of operators reaches."""
    source: str
    """What an estimate made with them calls its source."""

    @property
    def known(self) -> Shares:
        """The shares of a device of which only the datasheet is known. Raises ValueError for others."""
        if self.shares is None:
            raise ValueError("the shares of the device are not known")
        return self.shares


def tables_for(target: Target) -> Library | None:
    """The measured tables that a target asks for; None: it asks for none, or they do not have its device. Raises
    NotPossible where none are installed, TargetError for a file that is none."""
    if target.operators.times != "measured":
        return None
    found = library(None, tuple(Path(table) for table in target.operators.tables))
    return found if found.knows(target.cluster.device.name) else None


def speeds(target: Target, model: ModelSpec) -> Speeds:
    """The factors for a measured device, one with a stated efficiency, or one of which only the datasheet is known.
    Raises as `tables_for`."""
    device = target.cluster.device
    around, waiting = np.array([SPREAD, 1.0, 1 / SPREAD]), np.array([1 / SPREAD, 1.0, SPREAD])
    if device.measured:
        return Speeds(matrix=around, memory=around, link=around, waiting=waiting, source="measured here")
    if device.efficiency is None:
        return _fitted(target, model)
    reached = np.minimum(around * device.efficiency, 1.0)
    return Speeds(matrix=reached, memory=reached, link=around, waiting=waiting,
                  source=f"datasheet at a stated efficiency of {device.efficiency:g}")


def _fitted(target: Target, model: ModelSpec) -> Speeds:
    """The shares of the device's generation under the engine in its version; the interval is that of such cases."""
    tables, engine = tables_for(target), target.engine
    known, arch = efficiency(target.calibration), target.cluster.device.arch
    generation, figures, measured = known.figures(arch, engine.name, *schemes(model), engine.version)
    between = known.interval(f"together, {'measured' if measured else 'not measured'}")
    around = np.array([between.tpot[0], 1.0, between.tpot[1]])
    whose = "of its generation" if known.generation(arch)[1] else "like it"
    plain = known.figures(arch, engine.name, *schemes(model))[1]
    release = f", with what {engine.name} {engine.version} does otherwise" if figures != plain else ""
    own = f", calibrated with {target.calibration.source}" if target.calibration else ""
    also = f", shaped by measured tables of operators ({tables.name})" if tables else ""
    return Speeds(matrix=generation.linear_rate / around, memory=generation.linear_bytes / around,
                  link=generation.link / around, waiting=around,
                  shares=Shares(generation=generation, engine=figures, common=known.common, between=between,
                                tables=tables),
                  source=f"datasheet at the shares that devices {whose} reached{release}{own}{also}")
