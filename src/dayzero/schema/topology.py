"""Topology: what was measured of a cluster's links, level by level, and of its hosts."""

from __future__ import annotations

import msgspec

from .base import Noun
from .hardware import Reached


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
    """One level."""

    name: str
    """What it is called: `node`, `network`, or as the user said."""
    devices: int
    """Devices that one domain of it joins."""
    reached: dict[str, Reached]
    """What each collective reached: the line latency + size / bandwidth through what was timed, in the terms of one
    message and of the bytes that one device sends."""
    timings: tuple[Timing, ...] = ()
    """What was timed; empty: published figures."""


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
    """One measurement, or what a source published."""

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

    def figure(self, name: str) -> float | None:
        """The value of a figure; None: not measured."""
        return next((figure.value for figure in self.figures if figure.name == name), None)
