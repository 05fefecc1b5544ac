"""Topology: what was measured of a cluster's links, level by level, and of its hosts."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from dayzero.errors import TargetError

from .base import Noun
from .hardware import COLLECTIVES, Reached


class Timing(Noun, frozen=True, kw_only=True):
    """One collective over one level: what messages of several sizes took, and the line through that."""

    collective: str
    """One of `COLLECTIVES`."""
    ranks: int
    """Ranks of one group: one of each domain below the level."""
    groups: int
    """Groups that worked at the same moment, so that they shared what they share in a real run."""
    sizes: tuple[int, ...]
    """Bytes: the buffer of an all-reduce, the whole result of an all-gather, the whole input of a reduce-scatter, all
    that one rank gives to an all-to-all, one message."""
    seconds: tuple[float, ...]
    """Median over the rounds, for each size; of the ranks the slowest counts."""
    spread: tuple[float, ...]
    """(largest - smallest) / median over the rounds."""
    rounds: int
    """Rounds."""
    residual: float
    """Of the line through the seconds: root of the mean square of (line / seconds - 1)."""


class Level(Noun, frozen=True, kw_only=True):
    """One level. Raises TargetError for one that joins nothing, of which nothing is known, or whose figures are no
    figures."""

    name: str
    """What it is called: `node`, `network`, or as the user said."""
    devices: int
    """Devices that one domain of it joins."""
    reached: dict[str, Reached]
    """What each collective reached: the line latency + size / bandwidth through what was timed, in the terms of one
    message and of the bytes that one device sends."""
    timings: tuple[Timing, ...] = ()
    """What was timed; empty: published figures."""

    def __post_init__(self) -> None:
        if self.devices < 2 or not self.reached:
            _refuse(f"level {self.name!r} joins nothing that is known")
        for collective, reached in self.reached.items():
            if collective not in COLLECTIVES:
                _refuse(f"{collective!r} is no collective")
            if reached.latency is not None and not 0 <= reached.latency < math.inf:
                _refuse(f"{collective} of level {self.name!r} has a latency of {reached.latency:g} s")
        for timing in self.timings:
            if not 0 < len(timing.sizes) == len(timing.seconds) == len(timing.spread):
                _refuse(f"{timing.collective} of level {self.name!r} has not one time for each size")


class Figure(Noun, frozen=True, kw_only=True):
    """One rate of a device or its host."""

    name: str
    """Such as memory_bandwidth, matmul.bf16, host_to_device.pinned, disk_read.cold."""
    value: float
    """Median over the rounds of all ranks."""
    unit: str
    """B/s, FLOP/s or s."""
    spread: float
    """(largest - smallest) / median."""
    rounds: int
    """Values that the median is of."""


class Topology(Noun, frozen=True, kw_only=True):
    """One measurement, or what a source published. Raises TargetError for what is none."""

    name: str
    """Name of its file: device, nodes x devices in a node, network, date."""
    device: str
    """Name that target files use; of one that dayzero does not know, what the driver calls it."""
    devices_per_node: int
    """Devices of a node that took part."""
    nodes: int
    """Nodes."""
    network: str
    """Kind of the network between the nodes, as the user said; empty: not said, or one node."""
    backend: str
    """What carried the collectives."""
    date: str
    """Day, like 2026-11-30."""
    levels: tuple[Level, ...]
    """Innermost first."""
    figures: tuple[Figure, ...] = ()
    """Rates of device and host."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """What could not be measured -> why."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions, processor, settings of the backend."""
    seconds: float = 0.0
    """What measuring took."""
    source: str = ""
    """Where published figures are from; empty: measured by `dayzero probe`."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.devices_per_node < 1:
            _refuse(f"{self.nodes} nodes of {self.devices_per_node} devices")
        if any(below.devices >= level.devices or level.devices % below.devices
               for below, level in pairwise(self.levels)):
            _refuse("a level is no whole number of domains of the one below it")
        if not self.source and not all(level.timings for level in self.levels):
            _refuse("a level was neither timed nor published")
        for figure in self.figures:
            if not 0 < figure.value < math.inf:
                _refuse(f"{figure.name} is {figure.value:g} {figure.unit}")

    def figure(self, name: str) -> float | None:
        """The value of a figure; None: not measured."""
        return next((figure.value for figure in self.figures if figure.name == name), None)


def _refuse(what: str) -> None:
    raise TargetError(f"no topology: {what}", "measure again with `dayzero probe`")
